"""
Run ``load``, a closed loop of our own: several clients, each over a connection that it keeps.

1. hey keeps 500 idle connections, and connects again for every request beyond; it asks for one and
   the same; and it cannot ask for what it just created. This one can.
2. An operation is a GET, or with a body a POST and the GET of what that made: an insert and a find.
   It is a 200 when both went well and the found is what was inserted.
3. It may ask for a time instead of a number; then it also looks for a text in each answer.
4. It is built once from ``bench/load``, of Go's standard library alone.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench import hey_build
from bench.hey import Result
from bench.vegeta import Answer, split_by_status

SOURCES = Path(__file__).parent / "load"


class LoadError(Exception):
    """It failed, or said something that is not its CSV."""


@dataclass(frozen=True)
class Run:
    """What became of each operation, and how long all took."""

    answers: list[Answer]
    seconds: float


def find() -> str:
    """Return the path of the program, built first where there is none."""
    return hey_build.find_own(SOURCES)


def run(
    urls: Sequence[str],
    operations: int,
    clients: int,
    *,
    body: str | None = None,
    then: Literal["find", "delete", "nothing"] = "find",
    timeout_s: int = 60,
) -> Run:
    """
    Ask *urls* in turn, *operations* times in all, from *clients* at once.

    Where some have "PATCH " before them, these are changed to the *body*, and the others read.
    Without, the *body* is posted, and *then* says what is done with what that made.
    """
    command = [find(), "-n", str(operations), "-c", str(clients), "-t", f"{timeout_s}s"]
    if body is not None:
        command += ["-body", body, *{"delete": ["-delete"], "nothing": ["-alone"]}.get(then, [])]
    return _run([*command, *urls], 2 * timeout_s * (operations // clients + 1) + 60)


def run_for(
    urls: Sequence[str],
    seconds: float,
    clients: int,
    *,
    marker: str,
    headers: Mapping[str, str],
    body: str | None = None,
    timeout_s: int = 60,
) -> Run:
    """
    Ask *urls* in turn for *seconds* from *clients* at once, and wait for what is in progress then.

    An answer without *marker* in its body is "differs". ``{client}`` in a header and in the
    *marker* is the number of the client, in four digits, ``{number}`` in a *body* that of the
    request, in eight. With a *body* it is posted, and nothing is asked for what that made.
    """
    command = [find(), "-for", f"{seconds}s", "-c", str(clients), "-t", f"{timeout_s}s"]
    command += ["-marker", marker]
    for name, value in headers.items():
        command += ["-H", f"{name}: {value}"]
    if body is not None:
        command += ["-alone", "-body", body]
    return _run([*command, *urls], seconds + timeout_s + 60)


def parse(text: str) -> Run:
    """Read the program's CSV: when it began and how long it took in seconds, and the status."""
    try:
        rows = [line.split(",") for line in text.splitlines()]
        answers = [Answer(float(sent), float(took), status) for sent, took, status in rows]
    except ValueError as error:
        raise LoadError(f"not load's CSV: {error}") from error
    first_s = min((each.sent_s for each in answers), default=0.0)
    last_s = max((each.sent_s + each.took_s for each in answers), default=0.0)
    return Run(answers, last_s - first_s)


def together(runs: Sequence[Run], clients: int, right: int = 200) -> Result:
    """Return what came of all *runs*, as if they had been one; *right* is the status to count."""
    answers = [each for run in runs for each in run.answers]
    return split_by_status(answers, clients, round(sum(run.seconds for run in runs), 4), right)


def _run(command: Sequence[str], limit_s: float) -> Run:
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        raise LoadError(f"load ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return parse(done.stdout)

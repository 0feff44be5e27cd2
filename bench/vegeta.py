"""
Run `vegeta`, an open loop: it asks at a rate, however slowly it is answered.

1. A latency counts from the moment when the request was due to be sent: a server that stops for
   a while makes all wait who would have come meanwhile.
2. vegeta takes the idle connection used last, and most of many would never be used. So each of
   *connections* has an address of its own, mapped to the server's, and all take turns.
3. The first *lead_s* seconds are asked like the others and not looked at.
4. It is built once, from the versions and checksums in ``bench/vegeta``.
"""

import csv
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import hey_build
from bench.hey import Result, percentile_ms

MODULE, VERSION = "github.com/tsenart/vegeta/v12", "12.12.0"
SOURCES = Path(__file__).parent / "vegeta"
# Below this share of the rate, what was measured is vegeta and not the server.
MIN_OFFERED = 0.95


class VegetaError(Exception):
    """vegeta failed, or could not offer the given rate."""


@dataclass(frozen=True)
class Answer:
    """One request: when it was sent (seconds since the first), how long it took, its status."""

    sent_s: float
    took_s: float
    status: str


def find() -> str:
    """Return the path of vegeta, built first where there is none."""
    target = hey_build.VAR / "bin" / f"vegeta-{VERSION}"
    if target.exists():
        return str(target)
    return hey_build.install(MODULE, target, program="vegeta", folder=SOURCES)


def attack(
    url: str,
    rate: float,
    seconds: float,
    *,
    lead_s: float = 0.0,
    connections: int | None = None,
    timeout_s: float = 10.0,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: str | None = None,
) -> list[Answer]:
    """
    Ask *url* *rate* times a second for *lead_s* and *seconds* more; return what came then.

    There are exactly *connections* connections, and who finds its own busy waits; None: as many
    as it takes. A request without an answer after *timeout_s* is an error.

    Raises:
        VegetaError: it failed, or did not offer that rate.
    """
    whole = f"{round(rate * 100)}/100s"
    urls, options = [url], ["-connections", "20000"]
    if connections is not None:
        urls, options = _one_each(url, connections)
    for each in (headers or {}).items():
        options += ["-header", ": ".join(each)]
    command = [find(), "attack", "-rate", whole, "-duration", f"{lead_s + seconds}s", *options]
    command += ["-timeout", f"{timeout_s}s", "-max-body", "0", "-redirects", "-1"]
    with tempfile.TemporaryDirectory(prefix="gl-") as name:
        asked, found = Path(name) / "targets", Path(name) / "answers"
        asked.write_text("".join(f"{method} {each}\n" for each in urls))
        if body is not None:
            sent = Path(name) / "body"
            sent.write_text(body)
            command += ["-body", str(sent)]
        limit_s = lead_s + seconds + timeout_s + 60
        _run([*command, "-targets", str(asked), "-output", str(found)], limit_s)
        text = _run([find(), "encode", "-to", "csv", str(found)], limit_s)
    answers = [each for each in parse(text.splitlines()) if each.sent_s >= lead_s]
    offered = len(answers) / seconds
    if offered < MIN_OFFERED * rate:
        raise VegetaError(f"vegeta offered {offered:.0f} requests a second instead of {rate:.0f}")
    return answers


def parse(lines: Iterable[str]) -> list[Answer]:
    """Read vegeta's CSV: time in ns, status (0: none), latency in ns, and more."""
    try:
        rows = [(int(row[0]), row[1], int(row[2])) for row in csv.reader(lines)]
    except (IndexError, ValueError) as error:
        raise VegetaError(f"not vegeta's CSV: {error}") from error
    first = min((row[0] for row in rows), default=0)
    return [
        Answer((sent - first) / 1e9, took / 1e9, "error" if status == "0" else status)
        for sent, status, took in rows
    ]


def split_by_status(
    answers: Sequence[Answer], clients: int, seconds: float, right: int = 200
) -> Result:
    """Summarise *answers* to what was asked in *seconds*: the speeds are those of the *right*."""
    good_s = sorted(each.took_s for each in answers if each.status == str(right))
    p50_ms, p99_ms, p999_ms = (percentile_ms(good_s, share, 3) for share in (0.5, 0.99, 0.999))
    return Result(
        asked=len(answers),
        clients=clients,
        answers=dict(sorted(Counter(each.status for each in answers).items())),
        seconds=seconds,
        req_s=round(len(good_s) / seconds, 2),
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        p999_ms=p999_ms,
    )


def _one_each(url: str, connections: int) -> tuple[list[str], list[str]]:
    """Return a URL for each connection, and the options that lead them all to *url*."""
    address, slash, path = url.removeprefix("http://").partition("/")
    port = address.rpartition(":")[2]
    options = ["-connections", "1", "-max-connections", "1", "-dns-ttl=-1ns"]
    urls = []
    for each in range(connections):
        # Of the loopback as well: should the mapping fail, no server is asked by mistake.
        alias = f"127.1.{each // 250}.{each % 250 + 1}:{port}"
        options += ["-connect-to", f"{alias}:{address}"]
        urls.append(f"http://{alias}{slash}{path}")
    return urls, options


def _run(command: Sequence[str], limit_s: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        raise VegetaError(f"vegeta ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout

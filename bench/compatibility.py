"""
Try libraries under our worker, one after the other, and write what they do into
``greenline/doctor/compatibility.json`` and ``docs/compatibility.md``.

1. Each has an environment of its own in ``var/compatibility``, with the newest version that the
   package index has, and one worker. It waits for a server that answers late, or for a deaf one.
2. While a call waits for a second, a ticker in the hub measures how late it runs, and ``/`` is
   asked: a library whose call makes the ticker late for half of the time blocks the hub.
3. Calls of five seconds are interrupted by ``REQUEST_TIMEOUT`` a hundred times, more at once than
   the pool has places. Afterwards as many calls as there are places wait at the same time, and
   each gets its own answer; otherwise it breaks when interrupted.
4. In another worker it is imported by gunicorn.conf.py, before the worker is patched. If it blocks
   only there it yields when patched first. An agent is started there as well, and two first calls
   are made at once: where they are not answered it needs an order.
5. An agent that blocks is tried again, started by gunicorn.conf.py.
6. A library that cannot be installed or fails is named, keeps its record if it has one, and does
   not end the run; the exit status is then 1.

    python -m bench.compatibility [--only redis,pymongo] [--fresh]
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import quote

import msgspec

from bench.compatibility_lineup import LIBRARIES, Library
from bench.compatibility_servers import SERVERS
from bench.hey_build import VAR
from bench.http_lineup import GREEN
from bench.legacy_lineup import PINNED
from bench.servers import ROOT, Gunicorn, ServerError, without_settings
from embedded.settings import CHECKOUT
from greenline.errors import ConfigError
from greenline.hub.compatibility import (
    BLOCKS,
    BREAKS,
    NEEDS_ORDER,
    PATCHED_FIRST,
    PATH,
    YIELDS,
    Record,
    records,
)

FOLDER = VAR / "compatibility"
PAGE = ROOT / "docs" / "compatibility.md"
BLOCK = re.compile(r"(<!-- results: compatibility -->\n).*?(<!-- end -->)", re.DOTALL)
GREENLINE = ("gevent", "gunicorn", "gunicorn_h1c", "msgspec", "packaging", "click")

INTERRUPTIONS = 100
WAIT_S, INTERRUPTED_S, HELD_S = 1.0, 5.0, 0.5
REQUEST_TIMEOUT_S = 1.0
# The part of a call for which the hub is late, from which on the call counts as blocking it.
BLOCKED = 0.5
ATTEMPTS = 4  # to have all places: a busy machine may be late, a lost place stays lost
INSTALL_S, CALL_S, LIBRARY_S = 240, 30, 60
FIRST_CALLS, FIRST_CALLS_S = 2, 10


class Failure(Exception):
    """A library could not be tried; says why."""


@dataclass(frozen=True)
class Wait:
    """
    One call that waits.

    :param took_s: its time in seconds, float.
    :param late_s: how late the hub was at most, in seconds, float.
    :param other_s: the time of the slowest other request meanwhile, in seconds, float.
    """

    took_s: float
    late_s: float
    other_s: float

    @property
    def blocks(self) -> bool:
        """Whether it blocks the hub."""
        return self.late_s > BLOCKED * self.took_s


@dataclass(frozen=True)
class Trial:
    """
    What a library did.

    :param version: the version, str.
    :param wait: its call, imported in the application.
    :param early: its call, imported before the worker is patched; None: not tried.
    :param early_error: why that has failed, str; empty: it has not.
    :param prepared: of an agent: its call where it is started before the worker is patched. Default
        None.
    :param interruptions: the number of calls that were interrupted, int.
    :param damage: what was wrong afterwards, str; empty: nothing.
    """

    version: str
    wait: Wait
    early: Wait | None = None
    prepared: Wait | None = None
    interruptions: int = 0
    damage: str = ""
    early_error: str = ""


def verdict(library: Library, trial: Trial) -> str:
    """Return the verdict on a library that was tried."""
    if trial.wait.blocks:
        is_cured = trial.prepared is not None and not trial.prepared.blocks
        return NEEDS_ORDER if library.start and is_cured else BLOCKS
    if trial.damage:
        return BREAKS
    is_late = trial.early is not None and trial.early.blocks
    if not is_late and not trial.early_error:
        return YIELDS
    return NEEDS_ORDER if library.start else PATCHED_FIRST


def why(library: Library, trial: Trial) -> str:
    """Return what was measured, in words."""
    said = [f"a call of {trial.wait.took_s:.1f} s makes the hub late by {_shown(trial.wait)}"]
    if trial.prepared is not None:
        said.append(f"started before patching by {_shown(trial.prepared)}")
    done = "started" if library.start else "imported"
    if trial.early is not None and trial.early.blocks:
        said.append(f"{done} before patching by {_shown(trial.early)}")
    if trial.early_error:
        said.append(f"{done} before patching it fails: {trial.early_error}")
    if trial.damage:
        said.append(f"after {trial.interruptions} interruptions {trial.damage}")
    elif trial.interruptions:
        ends = "the next call waits as before"
        if library.server != "deaf":
            ends = "the next call is answered"
            if library.places > 1:
                ends = f"{library.places} calls at once are answered"
        said.append(f"after {trial.interruptions} interruptions {ends}")
    if library.note:
        said.append(library.note)
    return "; ".join(said)


def _shown(wait: Wait) -> str:
    return f"{wait.late_s:.1f} s" if wait.late_s >= 0.1 else f"{wait.late_s * 1000:.0f} ms"


class Environment:
    """
    The Python in which a library is tried.

    :param folder: a virtual environment; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"

    def install(self, library: Library, variables: Mapping[str, str]) -> None:
        """Make the environment, unless it is complete; raise Failure with what pip says."""
        wanted = library.requires or (library.name,)
        if library.name in sys.stdlib_module_names:
            wanted = ()
        digest = hashlib.sha256(f"{wanted} {sys.version} {self.folder}".encode()).hexdigest()
        note = self.folder / "installed"
        if note.exists() and note.read_text() == digest:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        uv = [str(Path(sys.executable).parent / "uv")]
        _run([*uv, "venv", "--quiet", "--python", sys.executable, str(self.folder)], {})
        pip = [*uv, "pip", "install", "--quiet", "--python", str(self.bin / "python")]
        # The versions of what greenline needs, and of the drivers that it supports.
        pip += ["--constraint", str(CHECKOUT / "requirements-common.txt")]
        _run([*pip, *GREENLINE, *wanted], variables)
        note.write_text(digest)

    def version(self, library: Library) -> str:
        """Return the version that is installed; of a part of Python, Python's."""
        if library.name in sys.stdlib_module_names:
            return f"Python {sys.version.split()[0]}"
        names = [*library.requires, library.name]
        wanted = [re.split(r"[\[<=>]", each)[0] for each in names]
        paths = [str(each) for each in self.folder.glob("lib/python*/site-packages")]
        for name in reversed(wanted):
            for each in distributions(name=name, path=paths):
                return each.version
        raise Failure(f"{library.name} is not installed")


def _run(command: Sequence[str], variables: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True,
            check=False, timeout=INSTALL_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failure(f"the install took more than {INSTALL_S} s") from error
    if done.returncode:
        raise Failure(f"it cannot be installed: {done.stderr.strip()[-600:]}")


class Worker(Gunicorn):
    """A gunicorn with one worker of ours, that asks a library for a server's answers."""

    def __init__(
        self, environment: Environment, library: Library, env: Mapping[str, str], folder: Path
    ) -> None:
        arguments = [*PINNED, *GREEN, "bench.peers.compatibility_app:app"]
        variables = {"PYTHONPATH": str(ROOT), "COMPATIBILITY": library.name, **env}
        super().__init__(arguments, ready="/", env=variables, log=folder / "log", cwd=folder)
        self.command[0] = str(environment.bin / "gunicorn")
        self.env = without_settings(self.env, variables)

    def call(
        self, seconds: float, number: int, timeout_s: float = CALL_S
    ) -> tuple[int, dict[str, object]]:
        """
        Make one call of the library; return the status and what it said.

        :param seconds: how long it is to wait, float.
        :param number: makes the call's word unique, int.
        :param timeout_s: seconds to wait for the answer, float. Default 30.
        """
        word = f"wait-{seconds:g}-{number}"
        status, _, body = self.ask("GET", f"/ask?{quote(word)}", timeout_s=timeout_s)
        said = dict(json.loads(body)) if status in (200, 500) else {}
        return status, said | {"word": word}

    def late_s(self) -> float:
        """Return how late the hub was at most since the last time, in seconds."""
        return float(json.loads(self.get("/lag")[1])["late_s"])


@contextmanager
def working(
    environment: Environment,
    library: Library,
    address: str,
    *,
    env: Mapping[str, str],
    is_early: bool = False,
) -> Iterator[Worker]:
    """
    Run a worker.

    :param is_early: gunicorn.conf.py imports the library and starts an agent, bool. Default False.
    """
    with tempfile.TemporaryDirectory(prefix="greenline-compatibility-") as name:
        folder = Path(name)
        if is_early:
            lines = [f"import {module}\n" for module in library.modules]
            if library.start:
                lines.append("from bench.compatibility_lineup import BY_NAME\n")
                lines.append(f"BY_NAME[{library.name!r}].start({address!r})\n")
                env = {**env, "COMPATIBILITY_STARTED": "1"}
            (folder / "gunicorn.conf.py").write_text("".join(lines))
        variables = {"COMPATIBILITY_ADDRESS": address, **env}
        with Worker(environment, library, variables, folder) as worker:
            yield worker


def wait(worker: Worker, library: Library) -> Wait:
    """Make one call that waits, and other requests meanwhile; raise Failure if it does not wait."""
    if library.server not in ("deaf", "computing"):
        status, said = worker.call(0, 0)  # imports, connects and proves that it works
        if said.get("found") != said["word"]:
            raise Failure(f"it does not answer: {status} {said.get('error', said)}")
    elif library.server == "computing":
        worker.call(0, 0)
    worker.late_s()
    others = []
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(worker.call, WAIT_S, 1)
        while not asked.done():
            begun = time.monotonic()
            worker.ask("GET", "/", timeout_s=CALL_S)
            others.append(time.monotonic() - begun)
            time.sleep(0.02)
        _, said = asked.result()
    took_s = float(str(said.get("took_s", 0.0)))
    if took_s < BLOCKED * WAIT_S:
        raise Failure(f"it did not wait: {took_s:.2f} s, {said.get('error', said)}")
    return Wait(took_s, worker.late_s(), max(others))


def first_calls(worker: Worker) -> None:
    """Make the first calls of a worker, at once; raise Failure if one is not answered."""
    with ThreadPoolExecutor(FIRST_CALLS) as clients:
        asked = [
            clients.submit(worker.call, WAIT_S, number, FIRST_CALLS_S)
            for number in range(FIRST_CALLS)
        ]
        try:
            for each in asked:
                each.result()
        except OSError as error:
            raise Failure(
                f"{FIRST_CALLS} first calls at once are not answered in {FIRST_CALLS_S} s"
            ) from error


def interrupt(worker: Worker, library: Library) -> tuple[int, str]:
    """Interrupt calls; return how many, and what is wrong afterwards."""
    count, numbers = 0, itertools.count(10)
    until = time.monotonic() + LIBRARY_S / 2
    with ThreadPoolExecutor(library.at_once) as clients:
        while count < INTERRUPTIONS and time.monotonic() < until:
            asked = [
                clients.submit(worker.call, INTERRUPTED_S, next(numbers))
                for _ in range(library.at_once)
            ]
            more = sum(_is_interrupted(*each.result()) for each in asked)
            if not more:  # its calls do not wait any more, or are not interrupted
                break
            count += more
        damage = ""
        for _ in range(ATTEMPTS):
            many = 1 if library.server == "deaf" else library.places
            asked = [clients.submit(worker.call, HELD_S, next(numbers)) for _ in range(many)]
            damage = next(filter(None, (_damage(library, *one.result()) for one in asked)), "")
            if not damage:
                break
    if not count:
        raise Failure("its calls are not interrupted")
    return count, damage


def _is_interrupted(status: int, said: Mapping[str, object]) -> bool:
    # Some libraries catch the TimeoutError of a wait and return at once.
    took_s = float(str(said.get("took_s", 0.0)))
    return status == 504 or BLOCKED * REQUEST_TIMEOUT_S < took_s < BLOCKED * INTERRUPTED_S


def _damage(library: Library, status: int, said: Mapping[str, object]) -> str:
    if library.server == "deaf":
        # It has to wait again: an error at once would be one of its own.
        took_s = float(str(said.get("took_s", REQUEST_TIMEOUT_S)))
        is_failed = took_s < BLOCKED * HELD_S and said.get("error") is not None
        return f"a call fails at once: {said['error']}" if is_failed else ""
    if status == 504:
        return "a call waits for a place that is lost"
    if status != 200:
        return f"a call fails: {said.get('error', status)}"
    if (found := said.get("found")) != said["word"]:
        is_of_another = str(found).startswith("wait-")
        return "a call gets the answer of another one" if is_of_another else "a call gets no answer"
    # Two calls one after the other, where a place is missing, take as long as both.
    if float(str(said["took_s"])) > 1.8 * HELD_S:
        return "a call waits for a place that is lost"
    return ""


def try_out(library: Library, environment: Environment, *, installs: bool = True) -> Trial:
    """
    Try a library.

    :param installs: whether the environment is made, bool. Default True.
    :raises Failure: it could not be tried.
    """
    kind, serve = SERVERS[library.server]
    try:
        variables = library.system() if library.system else {}
        if installs:
            environment.install(library, variables)
        version = environment.version(library)
        with ExitStack() as stack:
            address = stack.enter_context(serve())

            def working_(env: Mapping[str, str], *, is_early: bool = False) -> Worker:
                return stack.enter_context(
                    working(environment, library, address, env=variables | env, is_early=is_early)
                )

            worker = working_({})
            first = wait(worker, library)
            worker.stop()
            if first.blocks:
                if not library.start:
                    return Trial(version, first)
                worker = working_({}, is_early=True)
                return Trial(version, first, prepared=wait(worker, library))
            early, early_error = None, ""
            if library.start:
                worker = working_({})
                first_calls(worker)
                worker.stop()
                worker = working_({}, is_early=True)
                try:
                    first_calls(worker)
                except Failure as error:
                    early_error = str(error)
                worker.stop(grace_s=1)
            if not early_error:
                worker = working_({}, is_early=True)
                try:
                    early = wait(worker, library)
                except Failure as error:
                    early_error = str(error).removeprefix("it does not answer: ")
                worker.stop()
            if library.server == "computing":
                return Trial(version, first, early, early_error=early_error)
            limited = working_({"REQUEST_TIMEOUT": f"{REQUEST_TIMEOUT_S:g}"})
            return Trial(version, first, early, None, *interrupt(limited, library), early_error)
    except (ConfigError, ServerError, OSError, ValueError) as error:
        raise Failure(f"{kind}: {type(error).__name__}: {str(error)[-600:]}") from error


def record(library: Library, trial: Trial | None) -> Record:
    """Return the record of a library; without a trial, what its source says."""
    said = verdict(library, trial) if trial else library.verdict or ""
    default = "import it in the application, after patching" if said == PATCHED_FIRST else ""
    return Record(
        name=library.name,
        modules=library.modules,
        tried=trial is not None,
        version=trial.version if trial else "",
        date=date.today().isoformat() if trial else "",
        against=SERVERS[library.server][0] if trial else "",
        verdict=said,
        why=why(library, trial) if trial else library.note,
        source=library.source,
        instead=library.instead or default,
        extension=library.extension,
        when=library.when,
        without=library.without,
        computes=library.computes,
        before_patching=bool(library.start and trial and trial.wait.blocks),
    )


def write(found: Sequence[Record], path: Path = PATH, page: Path = PAGE) -> None:
    """Write the table and the page; a record that is there takes the place of the one before it."""
    known = {(each.name, each.when): each for each in records(path)} if path.exists() else {}
    known |= {(each.name, each.when): each for each in found}
    order = [(each.name, each.when) for each in LIBRARIES]
    kept = [known[key] for key in order if key in known]
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
    records.cache_clear()
    text = page.read_text(encoding="utf-8")
    block = "\n".join(table(kept))
    page.write_text(BLOCK.sub(lambda match: f"{match[1]}{block}\n{match[2]}", text), "utf-8")


def table(found: Sequence[Record]) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    yield "| library | version | tried on | verdict | measured | against | what to do |"
    yield "|---|---|---|---|---|---|---|"
    for each in sorted(found, key=lambda one: one.name.lower()):
        tried = each.version if each.tried else "not tried"
        cells = (f"[{each.name}]({each.source})", tried, each.date, each.verdict, each.why,
                 each.against, each.instead)  # fmt: skip
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")


def main() -> int:
    """Try them; return the exit status."""
    parser = argparse.ArgumentParser(prog="bench.compatibility")
    parser.add_argument("--only", help="names of libraries, with commas between; default: all")
    parser.add_argument("--fresh", action="store_true", help="install the newest versions anew")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wanted = given.only.split(",") if given.only else [each.name for each in LIBRARIES]
    if unknown := set(wanted) - {each.name for each in LIBRARIES}:
        parser.error(f"no such library: {', '.join(sorted(unknown))}")
    if given.fresh:
        for name in wanted:
            shutil.rmtree(FOLDER / name, ignore_errors=True)
    failed = 0
    for library in (each for each in LIBRARIES if each.name in wanted):
        begun, trial = time.monotonic(), None
        if library.server:
            try:
                trial = try_out(library, Environment(FOLDER / library.name))
            except Failure as error:
                failed += 1
                print(f"{library.name}: FAILED: {error}", flush=True)
                continue
        found = record(library, trial)
        write([found])
        print(
            f"{library.name} {found.version}: {found.verdict}: {found.why} "
            f"({time.monotonic() - begun:.0f} s)",
            flush=True,
        )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

"""
Run the tests in processes side by side, since they wait more than they work.

A plugin, which ``make test`` names when it has no ARGS: ``pytest -p tests.side_by_side``.

1. The first process starts the others, collects all tests and runs none. It reports what the
   others tell, file by file, as if it had.
2. Each other process takes the next file that is not taken, collects it, and has servers of its
   own. The tests of a file run in order, in one process. While the machine is busy, as many files
   are taken as there are cores: a test that times something has a second of slack, which more would
   take.
3. A process that ends in the middle of a file, or that fails other than by a test, fails the run,
   and what it wrote is shown.
"""

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import pytest

from embedded.process import Child

PROCESSES = 4  # on two cores five take more time: the load of their own makes the machine busy
MAX_LOAD_A_CORE = 4  # in the last minute
LARGE = 16_000  # bytes of a file
FOLDER = "GREENLINE_SIDE_BY_SIDE"  # where the others take files, and tell
FILES = "files.json"  # in that folder
POLL_S = 0.1
LOAD_POLL_S = 1.0


def pytest_configure(config: pytest.Config) -> None:
    folder = os.environ.pop(FOLDER, "")
    # The first process writes what pytest makes of the tests' files, and the others read it.
    sys.dont_write_bytecode &= bool(folder)
    plugin = Other(config, Path(folder)) if folder else First()
    config.pluginmanager.register(plugin, "side_by_side")


def files(config: pytest.Config) -> list[str]:
    """Return the paths of the files with tests: large ones first, those of unit tests last."""
    # Not by pytest's own collection, which a process does once: it would miss fixtures later.
    found: set[Path] = set()
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        for pattern in config.getini("python_files"):
            found.update(path.rglob(pattern) if path.is_dir() else [path])
    # At the end the others would wait for the process that has a long one. The tuner's tests are
    # such a file, and the last but for the unit tests: hence the reverse order.
    units = str(config.rootpath / "tests" / "unit")
    order = {
        str(path): (path.stat().st_size < LARGE, str(path).startswith(units))
        for path in sorted(found, reverse=True)
    }
    return sorted(order, key=order.__getitem__)


def not_collected(session: pytest.Session) -> dict[str, list[Any]]:
    """Return the nodes of each file, by its path, before they are collected: none is imported."""
    found: dict[str, list[Any]] = {}
    # -k and -m select tests, and not their files.
    options = session.config.option
    selection, options.keyword, options.markexpr = (options.keyword, options.markexpr), "", ""
    nodes = list(session.perform_collect(genitems=False))
    options.keyword, options.markexpr = selection
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, pytest.Directory):
            nodes = [*node.ihook.pytest_make_collect_report(collector=node).result, *nodes]
        else:
            found.setdefault(str(node.path), []).append(node)
    return found


def collected(session: pytest.Session, nodes: list[Any]) -> list[Any]:
    """Return the tests of *nodes* that the command asks for."""
    items = [item for node in nodes for item in session.genitems(node)]
    session.config.hook.pytest_collection_modifyitems(
        session=session, config=session.config, items=items
    )
    return items


def cores() -> int:
    """Return how many cores the tests may use."""
    return len(os.sched_getaffinity(0))


def is_busy() -> bool:
    """Return whether so much runs on this machine that tests would wait for the processor."""
    return os.getloadavg()[0] > MAX_LOAD_A_CORE * cores()


class First:
    """Starts the others and reports what they tell."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._others: list[Child] = []
        self._missing: dict[int, str] = {}
        self._running = ExitStack()  # ends the others, and removes the folder

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Iterator[None]:
        if not session.config.option.collectonly:
            self._begin(session.config)  # while this process collects
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest itself knows what to do
        while self._missing and self._report(session.config):
            time.sleep(POLL_S)
            self._busy_s += POLL_S * is_busy()
        statuses = [other.wait() for other in self._others]
        if any(statuses) or self._missing:
            for number, status in enumerate(statuses):
                if status:
                    text = (self._folder / f"{number}.log").read_text(errors="replace")
                    print(f"\n\nprocess {number} ended with {status}:\n{text}")
            missing = ", ".join(self._missing.values()) or "the end"
            raise session.Interrupted(f"no word of {missing}")
        return True

    def pytest_unconfigure(self) -> None:
        self._running.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._busy_s:
            terminalreporter.write_line(
                f"The machine was busy for {self._busy_s:.0f} s: a file of tests for each core."
            )

    def _begin(self, config: pytest.Config) -> None:
        """Start the others as we were started; what failed last time is for us to remember."""
        paths = files(config)
        self._missing = {
            number: os.path.relpath(path, config.rootpath) for number, path in enumerate(paths)
        }
        folder = TemporaryDirectory(prefix="greenline-reports-")
        self._folder = Path(self._running.enter_context(folder))
        (self._folder / FILES).write_text(json.dumps(paths))
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        for number in range(min(PROCESSES, len(paths))):
            other = Child("a process of tests", signal.SIGINT)
            self._running.callback(other.stop)
            with (self._folder / f"{number}.log").open("wb") as log:
                other.start(
                    [*command, *config.invocation_params.args],
                    output=log,
                    env={**os.environ, FOLDER: str(self._folder)},
                )
            self._others.append(other)

    def _report(self, config: pytest.Config) -> bool:
        """Report the files that are done; return whether more may come."""
        alive = any(other.alive() for other in self._others)  # asked first: the last word counts
        for number in list(self._missing):
            results = self._folder / f"{number}.json"
            if results.exists():
                for data in json.loads(results.read_text()):
                    report(config, data)
                del self._missing[number]
        return alive


def is_taken(turn: IO[str]) -> bool:
    """Take *turn* and return True, or return False: another process has it."""
    # The system gives the lock back for a process that dies.
    with suppress(BlockingIOError):
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def report(config: pytest.Config, data: dict[str, Any]) -> None:
    """Report a phase of a test."""
    found = config.hook.pytest_report_from_serializable(config=config, data=data)
    if isinstance(found.longrepr, list):
        found.longrepr = tuple(found.longrepr)  # Why it was skipped; JSON has no tuples.
    test = {"nodeid": found.nodeid, "location": found.location}
    if found.when == "setup":
        config.hook.pytest_runtest_logstart(**test)
    config.hook.pytest_runtest_logreport(report=found)
    if found.when == "teardown":
        config.hook.pytest_runtest_logfinish(**test)


class Other:
    """Runs the files that it takes, and tells what became of each."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._reports: list[dict[str, Any]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        return True  # each file when it is taken

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        nodes = not_collected(session)
        for number, path in enumerate(json.loads((self._folder / FILES).read_text())):
            with self._turn(), suppress(FileExistsError):
                (self._folder / f"{number}.taken").touch(exist_ok=False)
                items = collected(session, nodes.get(path, []))
                # After the last test of a file, what the session needs is left standing. A file may
                # have none that is selected.
                for item, following in zip(items, [*items[1:], session], strict=False):
                    session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                self._report(number)
        return True

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold one of the turns that there are while the machine is busy, one for each core."""
        with ExitStack() as stack:
            turns = [
                stack.enter_context((self._folder / f"turn {number}").open("w"))
                for number in range(cores())
            ]
            while is_busy() and not any(map(is_taken, turns)):
                time.sleep(LOAD_POLL_S)
            yield

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.append(data)

    def _report(self, number: int) -> None:
        results = self._folder / f"{number}.json"
        results.with_suffix(".new").write_text(json.dumps(self._reports))
        results.with_suffix(".new").replace(results)
        self._reports.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # Failures are reported one by one; and the others may have taken all the files.
        if session.exitstatus in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.OK

"""
Run most of the tests against the newest versions of all requirements: ``make canary``.

The requirements are installed without their bounds, and without pre-releases, in ``.venv-canary``.
For the tests that fail there, each package is set back to our version in turn: what then passes,
the new version broke. After 15 minutes the run is cut, and the table shows what is known by then.

``make canary ARGS=--oldest`` runs the tests of the runtime with our pins, except for the oldest
gunicorn, gevent and pymongo that pyproject.toml allows, in ``.venv-canary-oldest``.
"""

import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

LIMIT_S = 15 * 60.0
INTERRUPT_S = 60.0  # for pytest to stop its servers
REQUIREMENTS = Path("requirements-dev.txt")
PROJECT = Path("pyproject.toml")
VENV, OLDEST_VENV = Path(".venv-canary"), Path(".venv-canary-oldest")
LOG = "tests.log"
BOUND = re.compile(r"(gunicorn|gevent|pymongo)>=([\d.]+)")
# What depends on gunicorn and gevent, and needs no database; then what depends on pymongo, for
# which the tests start the MongoDB of REQUIREMENTS.
RUNTIME = (
    "tests/unit/flask", "tests/unit/http", "tests/unit/hub", "tests/unit/worker",
    "tests/contract/test_same_answers.py", "tests/e2e/test_error_log.py",
    "tests/e2e/test_limiter.py", "tests/e2e/test_hosting.py", "tests/e2e/test_odd.py",
    "tests/e2e/test_other_protocols.py", "tests/e2e/test_request_timeout.py",
    "tests/e2e/test_slow_clients.py", "tests/e2e/test_slow_tls.py", "tests/e2e/test_taking_over.py",
    "tests/e2e/test_unloadable.py", "tests/e2e/test_unmodified.py", "tests/e2e/test_upgrades.py",
    "tests/e2e/test_worker.py", "tests/unit/mongo", "tests/integration/mongo",
)  # fmt: skip
# Without those of deploy/, of make and of the commands, with which it would take too long.
NEWEST = (
    "tests/unit", "tests/contract", "tests/integration",
    *(each for each in RUNTIME if each.startswith("tests/e2e/")),
)  # fmt: skip
SIDE_BY_SIDE = ("-p", "tests.side_by_side")
PIN = re.compile(r"([\w.-]+)==([^\s;]+)(.*)")
FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)
SUMMARY = re.compile(r"^=+ (.*(?:passed|failed|error).*) =+$", re.MULTILINE)
DIRECT_END = "# Asked for by "  # begins the comment after the packages that we name
ROW = "{:<28} {:<16} {:<16} {}"

Versions = dict[str, tuple[str, str]]  # ours and the newest, by package


def main(arguments: list[str]) -> int:
    """Install, run the tests that *arguments* select, and print the table; return the status."""
    end_s = time.monotonic() + LIMIT_S
    if arguments[:1] == ["--oldest"]:
        return _run_oldest(arguments[1:] or [*SIDE_BY_SIDE, *RUNTIME], end_s)
    print(f"canary: installing the newest versions into {VENV}", flush=True)
    pins = {found[1]: found[2] for found in _pins(REQUIREMENTS)}
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    upgrade = ("--upgrade", "--upgrade-strategy", "eager", "--no-compile")
    _pip("install", *upgrade, *without_bounds(REQUIREMENTS))
    newest = _installed()
    changed = {
        name: (ours, newest[_normal(name)])
        for name, ours in pins.items()
        if newest.get(_normal(name), ours) != ours
    }
    print(f"canary: {len(changed)} packages have newer versions; running the tests", flush=True)
    output, is_cut = _tests(arguments or [*SIDE_BY_SIDE, *NEWEST], end_s)
    failed = set(FAILED.findall(output))

    def fails_with(name: str, version: str) -> set[str]:
        if time.monotonic() >= end_s:
            return failed
        _pip("install", "--no-deps", f"{name}=={version}")
        try:
            output, is_cut = _tests(sorted(failed), end_s)
            return failed if is_cut else {*FAILED.findall(output)}
        finally:
            _pip("install", "--no-deps", f"{name}=={changed[name][1]}")

    _print(changed, failed, culprits(failed, changed, fails_with))
    print(f"canary: {_summary(output, is_cut)}; see {VENV / LOG}")
    return 1 if failed or is_cut else 0


def _run_oldest(arguments: list[str], end_s: float) -> int:
    """Run the tests of the runtime with the lower bounds; return the status."""
    versions = lower_bounds(PROJECT)
    print(f"canary: installing {' '.join(versions)} into {OLDEST_VENV}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", OLDEST_VENV], check=True)
    _pip("install", "--no-compile", "-r", str(REQUIREMENTS), venv=OLDEST_VENV)
    _pip("install", "--no-compile", "--no-deps", *versions, venv=OLDEST_VENV)
    output, is_cut = _tests(arguments, end_s, OLDEST_VENV)
    summary = _summary(output, is_cut)
    failed = FAILED.findall(output)
    print(*failed, f"canary: {summary}; see {OLDEST_VENV / LOG}", sep="\n")
    return 1 if failed or is_cut or " passed" not in summary else 0


def lower_bounds(project: Path) -> list[str]:
    """
    Return the oldest gunicorn, gevent and pymongo that the package allows, as pip's requirements.

    :param project: its pyproject.toml.
    """
    found_in = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    needed = found_in["dependencies"] + found_in["optional-dependencies"]["mongo"]
    return [f"{found[1]}=={found[2]}" for one in needed if (found := BOUND.match(one))]


def without_bounds(requirements: Path) -> list[str]:
    """
    Return the packages of a requirements file, and of those that it names, without versions.

    Not those that only others ask for: pip's resolver would take their newest versions first, and
    then search for older versions of what asks for them.

    :param requirements: the file.
    """
    return [found[1] + found[3] for found in _pins(requirements, DIRECT_END)]


def culprits(
    failed: set[str], changed: Versions, fails_with: Callable[[str, str], set[str]]
) -> dict[str, set[str]]:
    """
    Return the tests that each new version broke, by package.

    :param failed: the tests that fail with all of the newest versions.
    :param changed: the packages with a newer version than ours.
    :param fails_with: returns those of *failed* that fail with one package in our version.
    """
    found: dict[str, set[str]] = {}
    for name, (ours, _) in changed.items():
        if broken := failed - set().union(*found.values()):
            found[name] = broken - fails_with(name, ours)
    return found


def _pins(requirements: Path, end: str = "") -> Iterator["re.Match[str]"]:
    """Yield the pins of the file and of those that it names, each up to a line with *end*."""
    for line in requirements.read_text(encoding="utf-8").splitlines():
        if end and line.startswith(end):
            return
        if line.startswith("-r "):
            yield from _pins(requirements.with_name(line[3:].strip()), end)
        elif found := PIN.match(line):
            yield found


def _normal(name: str) -> str:
    """Return the name as PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _pip(*arguments: str, venv: Path = VENV) -> str:
    command = [venv / "bin/python", "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, timeout=LIMIT_S)
    return done.stdout


def _installed() -> dict[str, str]:
    found = json.loads(_pip("list", "--format", "json"))
    return {_normal(each["name"]): each["version"] for each in found}


def _tests(arguments: list[str], end_s: float, venv: Path = VENV) -> tuple[str, bool]:
    """Run pytest; return its output, and whether it was cut at *end_s*."""
    remaining_s = end_s - time.monotonic()
    if remaining_s <= 0:
        return "", True
    command = [venv / "bin/python", "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    is_cut = False
    with (venv / LOG).open("a+", encoding="utf-8") as log:
        begin = log.tell()
        running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            running.wait(remaining_s)
        except subprocess.TimeoutExpired:
            is_cut = True
            running.send_signal(signal.SIGINT)  # it reports what has failed by then
            with suppress(subprocess.TimeoutExpired):
                running.wait(INTERRUPT_S)
        finally:
            running.kill()
        log.seek(begin)
        return log.read(), is_cut


def _summary(output: str, is_cut: bool) -> str:
    """Return the last line of pytest's *output*, and whether the run was cut."""
    last = (SUMMARY.findall(output) or ["pytest printed nothing"])[-1]
    return f"cut after 15 minutes: {last}" if is_cut else last


def _print(changed: Versions, failed: set[str], broken: Mapping[str, set[str]]) -> None:
    print(ROW.format("package", "our version", "newest version", "tests failed"))
    for name, versions in changed.items():
        print(ROW.format(name, *versions, len(broken.get(name, ()))))
    others = failed - set().union(*broken.values())
    print(ROW.format("no single package", "", "", len(others)))
    for name, tests in [*broken.items(), ("no single package", others)]:
        for test in sorted(tests):
            print(f"{name}: {test}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

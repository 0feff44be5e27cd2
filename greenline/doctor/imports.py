"""Find what goes wrong when an application is imported; it is imported in a child."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import greenline
from greenline.deploy.findings import Level
from greenline.doctor.codes import (
    BLOCKING_DEPENDENCY,
    CONNECTS_AT_IMPORT,
    IMPORTED_EARLY,
    NO_IMPORT,
    SLOW_IMPORT,
    STARTS_AT_IMPORT,
    UNPREPARED_DEPENDENCY,
)
from greenline.doctor.findings import Finding
from greenline.doctor.probe import CONFIGURING
from greenline.doctor.project import Project
from greenline.hub.compatibility import BLOCKS, records

ROOT = str(Path(greenline.__file__).parents[1])
LIMIT_S = 60.0
SLOW_S = 5.0
# Why, of a connection without which the import has succeeded.
GOES_ON = "Each worker tries it at its start, and goes on without it."
MAX_CHAIN = 5  # modules, the innermost of an import
PIECE_BYTES, MAX_PIECES = 4096, 64  # of what a child has printed, the last ones
MAX_LINE = 300
LAST_S = 2.0  # for what it has printed last


def probe(project: Project, target: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """
    Import *target* in a child, and return what :func:`greenline.doctor.probe.run` returns.

    :param target: ``module:name``.
    :param limit_s: seconds after which the child is ended, float. Default 60.
    """
    arguments = (target, str(project.folder), project.configuration, *map(str, project.packages))
    with tempfile.TemporaryFile() as document:
        fd = document.fileno()
        child = subprocess.Popen(
            command("from greenline.doctor import probe; probe.main()", str(fd), *arguments),
            cwd=project.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(fd,),
            start_new_session=True,
            # gunicorn's default folder is PWD, by whatever links it leads there.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PWD": str(project.folder)},
        )
        pieces = deque[bytes](maxlen=MAX_PIECES)
        # A daemon: a process that has left the child's session may keep the pipe open.
        reader = threading.Thread(target=_read, args=(child.stdout, pieces), daemon=True)
        reader.start()
        try:
            reason = f"it ended the process, with status {child.wait(limit_s)}"
        except subprocess.TimeoutExpired:
            reason = f"it did not end in {limit_s:.0f} s"
        finally:
            _end(child)
        document.seek(0)
        text = document.read()
    if text and text != CONFIGURING:
        return dict(json.loads(text))
    reader.join(LAST_S)
    lines = b"".join(pieces.copy()).decode(errors="replace").split("\n")
    last = next((f": {line[:MAX_LINE]}" for line in reversed(lines) if line.strip()), "")
    failed = {"error": f"{reason}{last}"}
    return {"configuration": failed} if text else failed


def _read(pipe: IO[bytes], pieces: deque[bytes]) -> None:
    """Read what a child prints, without a limit, and keep the last pieces."""
    with pipe:
        pieces.extend(iter(partial(pipe.readline, PIECE_BYTES), b""))


def command(code: str, *arguments: str) -> list[str]:
    """Return the command of a child that runs *code*, where greenline need not be installed."""
    # Last on the path: what the application has installed comes first.
    start = f"import sys; sys.path.append(sys.argv.pop(1)); {code}"
    return [sys.executable, "-c", start, ROOT, *arguments]


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the child and what it has started: it leads a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def findings(project: Project, target: str, seen: dict[str, Any]) -> Iterator[Finding]:
    """
    Yield the findings of an import.

    :param target: ``module:name``.
    :param seen: what :func:`probe` has returned.
    """

    place = partial(_place, project)
    configuration = project.configuration
    if failed := seen.get("configuration"):
        what = f"{configuration}: {failed['error']}"
        yield Finding(NO_IMPORT, *place(failed, configuration), what)
    if seen.get("error"):
        yield Finding(NO_IMPORT, *place(seen), f"{target}: {seen['error']}")
    for each in seen.get("early", ()):
        module = each["what"].partition(" ")[0]
        what = f"{each['what']}{_by(each, module)}"
        yield Finding(IMPORTED_EARLY, *place(each, configuration), what)
    for event in (*seen.get("events", ()), *seen.get("left", ())):
        what = f"{event['does']} {event['what']}"
        code = CONNECTS_AT_IMPORT if event["does"] == "connects to" else STARTS_AT_IMPORT
        if event.get("is_away"):
            what += ", which is away"
            code = code._replace(level=Level.REMARK, why=GOES_ON)
        yield Finding(code, *place(event), f"{what}{_by(event)}")
    if seen.get("seconds", 0) > SLOW_S:
        yield Finding(SLOW_IMPORT, "", 0, f"{target} takes {seen['seconds']:.1f} s")


def blocking(project: Project, seen: dict[str, Any]) -> dict[str, Finding]:
    """
    Return a finding for each driver or event loop that the worker would warn of, by its name.

    :param seen: what :func:`probe` has returned.
    """
    verdicts = {each.name: each.verdict for each in records()}
    found = {}
    for each in seen.get("blocking", ()):
        is_blocking = verdicts.get(each["name"], BLOCKS) == BLOCKS
        code = BLOCKING_DEPENDENCY if is_blocking else UNPREPARED_DEPENDENCY
        what = f"{each['what']}{_by(each, each['module'])}"
        # Whether a request uses it is not known.
        level = Level.WARNING
        found[each["name"]] = Finding(code._replace(level=level), *_place(project, each), what)
    return found


def _place(project: Project, of: dict[str, Any], default: str = "") -> tuple[str, int]:
    path = of.get("path", "")
    return (project.shown(Path(path)) if path else default), of.get("line", 0)


def _by(of: dict[str, Any], *modules: str) -> str:
    chain = " -> ".join([*of.get("chain", ()), *modules][-MAX_CHAIN:])
    return f" (imported: {chain})" if chain else ""

"""
Import an application in a process of its own, as a worker does, and report what happens.

It executes gunicorn.conf.py, patches, imports the application, and writes one JSON document to a
file descriptor, whatever else the application prints. :func:`greenline.doctor.imports.probe` starts
it, with the descriptor, the target and the folder as arguments.
"""

import importlib
import json
import os
import runpy
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

CONFIGURATION = "gunicorn.conf.py"
MAX_EVENTS = 200
# What an import may do that others notice.
WATCHED = {
    "socket.connect": "connects to",
    "socket.bind": "listens on",
    "subprocess.Popen": "starts",
    "os.fork": "forks",
    "signal.pthread_kill": "signals",
}

Event = dict[str, Any]


class Watcher:
    """
    Notes what the imports do, with the modules that are being imported then.

    :param folder: where the application's own files are.
    """

    def __init__(self, folder: str) -> None:
        self.events: list[Event] = []
        self._folder = folder
        self._is_on = False

    def start(self) -> None:
        """Note from now on; an audit hook cannot be removed again."""
        self._is_on = True
        sys.addaudithook(self._hear)

    def stop(self) -> None:
        """Note nothing more."""
        self._is_on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on or event not in WATCHED or len(self.events) >= MAX_EVENTS:
            return
        what = arguments[1] if event.startswith("socket.") else arguments[:1]
        if event == "socket.bind" and isinstance(what, tuple) and what[1] == 0:
            return  # a test whether there is IPv6, for instance
        chain = list(_chain(sys._getframe(1)))
        if chain:
            path, line = self._own_line(sys._getframe(1))
            self.events.append({
                "does": WATCHED[event], "what": _shown(what), "chain": chain,
                "path": path, "line": line,
            })  # fmt: skip

    def _own_line(self, frame: FrameType | None) -> tuple[str, int]:
        """Return the innermost line of the application's own files."""
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._folder):
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return "", 0


def _chain(frame: FrameType | None) -> Iterator[str]:
    """Yield the modules that are being imported, the innermost first."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name == "<module>" and name != "__main__":
            yield name
        frame = frame.f_back


def _shown(what: Any) -> str:
    if isinstance(what, tuple) and len(what) >= 2 and isinstance(what[1], int):
        return f"{what[0]}:{what[1]}"
    if isinstance(what, tuple):
        return " ".join(map(str, what))
    return what.decode(errors="replace") if isinstance(what, bytes) else str(what)


def run(target: str, folder: str) -> dict[str, Any]:
    """
    Import *target* and return what happened.

    :param target: ``module:name``, as gunicorn takes it.
    :param folder: the folder in which gunicorn is started.
    """
    watcher = Watcher(folder)
    watcher.start()
    module, _, name = target.partition(":")
    found: dict[str, Any] = {"early": [], "threads": [], "error": None, "seconds": 0.0}
    sys.path.insert(0, folder)
    try:
        is_preloaded = _configure(Path(folder) / CONFIGURATION, found)
        if not is_preloaded:
            found["early"] = _patched()
        begun = monotonic()
        try:
            loaded = importlib.import_module(module)
            _look_up(loaded, name or "application")
        finally:
            found["seconds"] = round(monotonic() - begun, 3)
        if is_preloaded:
            found["early"] = _patched()
        found["threads"] = [
            each.name for each in threading.enumerate() if each is not threading.main_thread()
        ]
    except BaseException as error:  # sys.exit() of the application, too
        found["error"] = _described(error, module)
        found["path"], found["line"] = _place(error, folder)
    watcher.stop()
    return found | {"events": watcher.events}


def _configure(path: Path, found: dict[str, Any]) -> bool:
    """Execute gunicorn's configuration; return whether it preloads the application."""
    if not path.exists():
        return False
    try:
        names = runpy.run_path(str(path), run_name=CONFIGURATION)
    except Exception as error:
        found["configuration"] = _described(error, CONFIGURATION)
        return False
    return bool(names.get("preload_app"))


def _patched() -> list[str]:
    """Patch as the worker does; return what was imported too early."""
    from greenline.hub import patching
    from greenline.patch import patch_all

    patch_all()
    return sorted(set(patching.imported_early()))


def _look_up(module: Any, expression: str) -> None:
    """Find the application in its module; a call such as ``create_app()`` is made."""
    name, is_call, _ = expression.partition("(")
    value = module
    for part in name.split("."):
        value = getattr(value, part)
    if is_call:
        value = value()
    if not callable(value):
        raise TypeError(f"{expression} is no WSGI application: {type(value).__name__}")


def _described(error: BaseException, module: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name
        if missing == module or module.startswith(f"{missing}."):
            return f"there is no module {missing}"
        return f"the package {missing} is not installed"
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg}"
    if isinstance(error, SystemExit):
        return f"it ends the process (sys.exit({error.code!r}))"
    if isinstance(error, EOFError):
        return "it reads from stdin"
    text, *more = [*filter(None, map(str.strip, str(error).splitlines())), ""]
    if text.endswith(":"):  # the reason follows
        text = f"{text} {more[0]}".rstrip()
    return f"{type(error).__name__}{f': {text}' if text else ''}"[:300]


def _place(error: BaseException, folder: str) -> tuple[str, int]:
    """Return the innermost line of the application's own files in the error's traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    place, traceback = ("", 0), error.__traceback__
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if path.startswith(folder):
            place = path, traceback.tb_lineno
        traceback = traceback.tb_next
    return place


def main() -> None:
    """Write what happened to the descriptor, and end: threads of the application may go on."""
    fd, target, folder = sys.argv[1:]
    document = json.dumps(run(target, folder))
    with open(int(fd), "w") as pipe:
        pipe.write(document)
    sys.stdout.flush()
    os._exit(0)

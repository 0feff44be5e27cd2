"""
Import an application in a process of its own, as a worker does, and report what happens.

It executes gunicorn's configuration, patches, imports the application, and writes one JSON document
to a file descriptor, whatever else the application prints. :func:`greenline.doctor.imports.probe`
starts it, with the descriptor, the target, the folder and the configuration as arguments.
"""

import inspect
import json
import os
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import monotonic
from types import FrameType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from gunicorn import util
from gunicorn.app.wsgiapp import WSGIApplication

MAX_EVENTS = 200
INSTALLED = f"site-packages{os.sep}"
WRITING = os.O_WRONLY | os.O_RDWR
DESCRIPTORS = Path("/proc/self/fd")  # of Linux
ANSWER_S, ANSWERS_S = 1.0, 5.0  # for a server, and for all of them, to accept a connection
CONFIGURING = b"configuring"  # in place of the document, while gunicorn's configuration is executed
NO_WSGI = "it is an ASGI application, which no worker for WSGI can call: leave it on uvicorn"
CONFIGURATION = "__config__"  # gunicorn imports its configuration by this name
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

    It is first in ``sys.meta_path``, which is asked for each module that is imported, and finds
    none: an audit event is raised for ``import a.b``, but neither for ``a`` nor by importlib.

    :param folder: where the application's own files are.
    :param configuration: the path of gunicorn's configuration, as it is shown.
    """

    def __init__(self, folder: str, configuration: str) -> None:
        self.events: list[Event] = []
        self.modules: dict[str, Event] = {}
        self._opened: dict[str, Event] = {}
        self._servers: list[tuple[Event, int, Any]] = []  # with the family and the address
        self._threads: WeakKeyDictionary[threading.Thread, Event] = WeakKeyDictionary()
        self._folder = folder
        self._shown_as = {CONFIGURATION: configuration}
        self._is_on = False

    def start(self) -> None:
        """Note from now on; an audit hook cannot be removed again."""
        self._is_on = True
        sys.addaudithook(self._hear)
        sys.meta_path.insert(0, self)
        start = threading.Thread.start

        def noting(thread: threading.Thread) -> None:
            self._threads[thread] = self._place(sys._getframe(1))
            start(thread)

        threading.Thread.start = noting  # type: ignore[assignment,method-assign]

    def stop(self) -> None:
        """Note nothing more."""
        self._is_on = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Note where the module *fullname* is imported."""
        self.modules[fullname] = self._place(sys._getframe(1))

    def watch_psycopg2(self) -> None:
        """Note the connections of psycopg2: libpq makes them in C, without an audit event."""
        from greenline.offload.imports import after_import

        def watch(module: Any) -> None:
            connect = module._connect

            def noting(dsn: str, *args: Any, **kwargs: Any) -> Any:
                given = module.extensions.parse_dsn(dsn)
                where = f"{given.get('host', 'the local Postgres')}:{given.get('port', 5432)}"
                self._note({"does": WATCHED["socket.connect"], "what": where}, sys._getframe(1))
                return connect(dsn, *args, **kwargs)

            module._connect = noting

        after_import("psycopg2", watch)

    def left(self) -> Iterator[Event]:
        """Yield the threads that run, and the files that are open for writing."""
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                what = {"does": "starts the thread", "what": repr(thread.name)}
                yield what | self._threads.get(thread, {})
        for path in sorted(self._opened.keys() & set(_written())):
            what = {"does": "keeps open", "what": path.removeprefix(self._folder + os.sep)}
            yield what | self._opened[path]

    def ask_servers(self) -> None:
        """Note of each connection whether its server is away now."""
        away: dict[Any, bool] = {}
        until = monotonic() + ANSWERS_S
        for event, family, address in self._servers:
            if address not in away and monotonic() < until:
                away[address] = not _accepts(family, address)
            event["is_away"] = away.get(address, False)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on:
            return
        if event == "open" and arguments[2] & WRITING and not isinstance(arguments[0], int):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            self._opened[path] = self._place(sys._getframe(1))
        if event not in WATCHED or len(self.events) >= MAX_EVENTS:
            return
        if event == "subprocess.Popen" and _is_by_platform(sys._getframe(1)):
            return  # uname, which has ended when the import goes on
        is_connection = event == "socket.connect"
        if is_connection and arguments[0].type == socket.SOCK_DGRAM:
            return  # needs no server
        what = arguments[1] if event.startswith("socket.") else arguments[:1]
        if event == "socket.bind" and isinstance(what, tuple) and what[1] == 0:
            return  # a test whether there is IPv6, for instance
        noted = self._note({"does": WATCHED[event], "what": _shown(what)}, sys._getframe(1))
        if is_connection and noted is not None:
            self._servers.append((noted, arguments[0].family, what))

    def _note(self, event: Event, frame: FrameType | None) -> Event | None:
        """Note what the code of *frame* does in an import; None: in none, or it is known."""
        noted = event | self._place(frame)
        if not self._is_on or not noted["chain"] or noted in self.events:
            return None
        self.events.append(noted)
        return noted

    def _place(self, frame: FrameType | None) -> Event:
        """Return the innermost line of the application's own files, and the imports in progress."""
        chain = [self._shown_as.get(each, each) for each in _chain(frame)][::-1]
        while frame is not None:
            if is_own(frame.f_code.co_filename, self._folder):
                return {"path": frame.f_code.co_filename, "line": frame.f_lineno, "chain": chain}
            frame = frame.f_back
        return {"path": "", "line": 0, "chain": chain}


def is_own(path: str, folder: str) -> bool:
    """Return whether the file *path* is the application's own: in its folder, not installed."""
    return path.startswith(folder + os.sep) and INSTALLED not in path


def _accepts(family: int, address: Any) -> bool:
    """Return whether a server accepts a connection."""
    with socket.socket(family) as connection, suppress(OSError):
        connection.settimeout(ANSWER_S)
        connection.connect(address)
        return True
    return False


def _written() -> Iterator[str]:
    """Yield the files that this process has open for writing."""
    with suppress(OSError):
        for descriptor in DESCRIPTORS.iterdir():
            with suppress(OSError):  # it is closed by now
                path = os.readlink(descriptor)
                flags = (DESCRIPTORS.parent / "fdinfo" / descriptor.name).read_text().split()[3]
                if int(flags, 8) & WRITING and os.path.isfile(path):
                    yield path


def _is_by_platform(frame: FrameType | None) -> bool:
    """Return whether the standard library's platform module, for its facts, is in the stack."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "platform":
            return True
        frame = frame.f_back
    return False


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


def run(fd: int, target: str, folder: str, configuration: str, *packages: str) -> dict[str, Any]:
    """
    Import *target* and return what happened.

    :param fd: the file of the document, which says meanwhile what is executed, int.
    :param target: ``module:name``, as gunicorn takes it.
    :param folder: the folder in which gunicorn is started.
    :param configuration: the path of gunicorn's configuration in it, which need not be there.
    :param packages: folders and files of libraries that are read as well, str.
    """
    watcher = Watcher(folder, configuration)
    watcher.start()
    module, _, _ = target.partition(":")
    found: dict[str, Any] = {
        "early": [], "left": [], "loaded": [], "error": None, "seconds": 0.0
    }  # fmt: skip
    try:
        os.pwrite(fd, CONFIGURING, 0)
        is_preloaded = _configure(target, folder, configuration, found)
        os.ftruncate(fd, 0)
        if not is_preloaded:
            found["early"] = _patched(watcher)
        begun = monotonic()
        try:
            application = util.import_app(target)
        finally:
            found["seconds"] = round(monotonic() - begun, 3)
        if is_preloaded:
            found["early"] = _patched(watcher)
        try:
            _load_urls()
            found["loaded"] = list(_loaded(folder, packages))
        except BaseException as error:  # which views there are is not known then
            found |= _failed(error, "", folder)
            found["error"] = f"its URLs: {found['error']}"
        found["left"] = list(watcher.left())
        found["blocking"] = list(_blocking(watcher))
        found["target"] = vars(sys.modules[module]).get("__file__") or ""
        if reason := _is_no_wsgi(application):
            found |= {"error": reason, "path": found["target"]}
    except BaseException as error:  # sys.exit() of the application, too
        found |= _failed(error, module, folder)
    watcher.stop()
    if not found["error"]:
        watcher.ask_servers()
    return found | {"events": watcher.events}


def _configure(target: str, folder: str, name: str, found: dict[str, Any]) -> bool:
    """Apply gunicorn's configuration as gunicorn does; return whether it preloads *target*."""
    try:
        cfg = configured(target).cfg
    except BaseException as error:  # sys.exit(), too
        # After an error of the configuration gunicorn exits: that line is none of the application.
        cause = error if _place(error, folder)[0] else error.__context__ or error
        found["configuration"] = _failed(cause, name, folder)
        return False
    return bool(cfg.preload_app)


def configured(target: str) -> WSGIApplication:
    """
    Apply gunicorn's configuration to this process, as gunicorn does.

    :param target: ``module:name``, as gunicorn takes it.
    :returns: gunicorn's application object, whose ``wsgi()`` imports *target*.
    """
    sys.argv[:] = ["gunicorn", target]
    application = WSGIApplication()
    cfg = application.cfg
    os.environ.update(cfg.env)
    for each in filter(None, (cfg.pythonpath or "").split(",")):  # as gunicorn's run() does
        sys.path.insert(0, os.path.abspath(each))
    return application


def _is_no_wsgi(application: Any) -> str:
    """Return why *application* is no WSGI application; empty: it may be one."""
    # To call an ASGI application returns a coroutine.
    if any(map(inspect.iscoroutinefunction, (application, type(application).__call__))):
        return NO_WSGI
    if inspect.isfunction(application):
        try:
            inspect.signature(application).bind({}, None)
        except TypeError:
            name = application.__name__
            return f"{name}() does not take environ and start_response; a factory is {name}()"
    return ""


def _patched(watcher: Watcher) -> list[Event]:
    """Patch as the worker does; return what was imported too early, and where."""
    from greenline.hub import patching
    from greenline.patch import patch_all

    patch_all()
    watcher.watch_psycopg2()
    return [
        {"what": each} | watcher.modules.get(each.partition(" ")[0], {})
        for each in sorted(set(patching.imported_early()))
    ]


def _blocking(watcher: Watcher) -> Iterator[Event]:
    """Yield the drivers and event loops that the worker warns of; threads are in what is left."""
    from greenline.hub import blocking
    from greenline.hub.compatibility import records

    modules = {each.name: each.modules[0] for each in records()}
    for name, reason in blocking.found():
        if not name.startswith("thread "):
            module = modules.get(name, name)
            yield {"name": name, "what": f"{name}: {reason}", "module": module} | (
                watcher.modules.get(module, {})
            )


def _load_urls() -> None:
    """Import Django's URLs with their views, which Django itself does at the first request."""
    settings = getattr(sys.modules.get("django.conf"), "settings", None)
    if settings is not None and settings.configured and hasattr(settings, "ROOT_URLCONF"):
        import_module("django.urls").get_resolver().url_patterns  # noqa: B018  it imports


def _loaded(folder: str, packages: Iterable[str]) -> Iterator[str]:
    """Yield the application's own files that are loaded, and those of *packages*."""
    roots = tuple(path if path.endswith(".py") else path + os.sep for path in packages)
    from greenline.hub.namespaces import namespaces

    for _, namespace in namespaces():
        path = namespace.get("__file__")
        if isinstance(path, str) and (is_own(path, folder) or path.startswith(roots)):
            yield path


def _failed(error: BaseException, module: str, folder: str) -> dict[str, Any]:
    """Describe the error of the import of *module*, and where it is raised."""
    path, line = _place(error, folder)
    return {"error": _described(error, module), "path": path, "line": line}


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
        if is_own(path, folder):
            place = path, traceback.tb_lineno
        traceback = traceback.tb_next
    return place


def main() -> None:
    """Write what happened to the descriptor, and end: threads of the application may go on."""
    fd, *arguments = sys.argv[1:]
    document = json.dumps(run(int(fd), *arguments))
    with open(int(fd), "w") as file:
        file.write(document)
    sys.stdout.flush()
    os._exit(0)

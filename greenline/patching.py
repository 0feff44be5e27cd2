"""
Make the process green, and prove it.

1. gunicorn's gevent worker patches the standard library after the fork, before it imports the
   application. The master stays unpatched: nothing in it may depend on gevent's hub.
2. Whatever took an unpatched original with it before that blocks every greenlet of the worker,
   so it is found by identity and refused by name: in globals, in attributes of classes and in
   defaults of functions. What hides inside an instance or a container is not seen.
3. psycopg2 waits in libpq, below Python: only its own hook makes it yield.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

import gevent.monkey

from greenline import offload, settings
from greenline.errors import LatePatching

# What blocks the hub when it stays unpatched, where it lives.
BLOCKING = {
    "_thread": ("RLock", "allocate_lock", "start_new_thread"),
    "queue": ("SimpleQueue",),
    "select": ("poll", "select"),
    "socket": ("SocketType", "create_connection", "getaddrinfo", "gethostbyname", "socket"),
    "ssl": ("SSLContext", "SSLSocket"),
    "subprocess": ("Popen",),
    "threading": ("Lock", "RLock", "local"),
    "time": ("sleep",),
}


def patch_all() -> None:
    """Patch what would block the hub: for scripts, tests and servers without a worker."""
    with entry_points_read_once():
        gevent.monkey.patch_all()
    hook_psycopg2()
    hook_sqlalchemy()
    hook_redis()
    keep_running_loops()
    offload.patch()


@contextmanager
def entry_points_read_once() -> Iterator[None]:
    """
    Read the entry points of all installed packages once, for the length of the block.

    gevent asks for plugins 25 times while it patches, and each time Python reads a file of every
    package: with 150 packages that is 0.2 s of CPU time for each process that starts.
    """
    read = metadata.entry_points
    found = read()
    metadata.entry_points = lambda **wanted: found.select(**wanted)  # type: ignore[assignment]
    try:
        yield
    finally:
        metadata.entry_points = read


def keep_running_loops() -> None:
    """Let each greenlet run an asyncio loop of its own; asyncio is imported after the patching."""
    from greenline.hub import running_loop

    running_loop.install()


def hook_psycopg2() -> None:
    """
    Let psycopg2, where it is installed, wait in the hub, so that other greenlets run meanwhile.

    Raises:
        ConfigError: ``GREENLINE_PG_WAIT`` names no callback.
    """
    if find_spec("psycopg2") is None:  # the application has another driver, or none
        return
    from psycopg2.extensions import set_wait_callback

    from greenline.postgres import foreign
    from greenline.postgres.wait import keeping_promises, wait

    foreign.install()
    if settings.pg_wait() == "psycogreen":
        from psycogreen.gevent import gevent_wait_callback

        set_wait_callback(keeping_promises(gevent_wait_callback))
    else:
        set_wait_callback(wait)


def hook_sqlalchemy() -> None:
    """Let checkouts of SQLAlchemy's pool nest; nothing is imported before the application does."""
    from greenline.legacy import sqlalchemy

    sqlalchemy.install()


def hook_redis() -> None:
    """Let requests wait for redis-py's pool; nothing is imported before the application does."""
    from greenline.legacy import redis_py

    redis_py.install()


def require_hook() -> None:
    """
    Prove that psycopg2 yields while it waits.

    Raises:
        LatePatching: psycopg2 has no wait callback.
    """
    from psycopg2.extensions import get_wait_callback

    if get_wait_callback() is None:
        raise LatePatching(
            "psycopg2 has no wait callback: every query would block the whole worker; "
            "call greenline.patching.hook_psycopg2() first"
        )


def require_patched() -> None:
    """
    Prove that the standard library is patched and that nobody kept an original.

    Raises:
        LatePatching: names what is not patched, or the modules imported too early.
    """
    missing = [name for name in BLOCKING if not gevent.monkey.is_module_patched(name)]
    if missing:
        raise LatePatching(
            f"the standard library is not patched ({', '.join(missing)}): run gunicorn with "
            "worker_class gevent, and without preload_app or a threaded worker"
        )
    early = sorted(set(_imported_early()))
    if early:
        raise LatePatching(
            "imported before the standard library was patched, so they would block the whole "
            f"worker: {'; '.join(early)}. Import them in the application, not in gunicorn.conf.py "
            "or in what it imports"
        )


def _imported_early() -> Iterator[str]:
    """Yield ``module (name from origin)`` for each global that is an unpatched original."""
    originals = dict(_originals())
    lock_types: tuple[Any, ...] = (
        type(_original("_thread", "allocate_lock")()),
        _original("_thread", "RLock"),
    )
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType) or _keeps_originals_on_purpose(module.__name__):
            continue
        for name, value in _held_by(module):
            if id(value) in originals:
                yield f"{module.__name__} ({name} from {originals[id(value)]})"
            elif isinstance(value, type) and any(id(base) in originals for base in value.__mro__):
                yield f"{module.__name__} ({name} is built on an unpatched class)"
            elif isinstance(value, lock_types):
                yield f"{module.__name__} ({name} is a lock made before patching)"


def _held_by(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the module's globals, its classes' attributes, and its functions' defaults."""
    for name, value in list(vars(module).items()):
        yield name, value
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            yield from ((f"{name}.{inner}", held) for inner, held in list(vars(value).items()))
        elif isinstance(value, FunctionType):
            yield from ((f"{name}'s default", held) for held in value.__defaults__ or ())


def _originals() -> Iterator[tuple[int, str]]:
    for module_name, names in BLOCKING.items():
        for name in names:
            original = _original(module_name, name)
            if original is not getattr(sys.modules[module_name], name, None):
                yield id(original), module_name


def _original(module_name: str, name: str) -> Any:
    return gevent.monkey.get_original(module_name, name)


def _keeps_originals_on_purpose(module_name: str) -> bool:
    """The standard library is what gevent patched; gevent and its parts call the originals."""
    package = module_name.partition(".")[0]
    return package in sys.stdlib_module_names or package in {"gevent", "greenlet"}

"""
Patch a process for gevent: the standard library and the libraries that would block the hub.

gunicorn's gevent worker patches the standard library after the fork and after ``post_fork``, before
it imports the application; Greenline's worker patches it before ``post_fork``. The arbiter stays
unpatched, and must not depend on gevent's hub.

:func:`patch_all`, for a script, and :func:`hook_psycopg2`, for gunicorn's own gevent worker, are
the public face; all else is internal.
"""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Any

import gevent.monkey

from greenline import offload, settings
from greenline.hub import callers, gevent_compat, sleep, thread_locks
from greenline.offload.imports import after_import

log = logging.getLogger(__name__)


def patch_all() -> None:
    """Patch the standard library and other libraries, in a process without Greenline's worker."""
    with gevent_patches():
        gevent.monkey.patch_all()
    hook_libraries()
    offload.patch()


@cache
def entry_points() -> Any:
    """Return the entry points of all packages; an arbiter reads them for its workers."""
    return metadata.entry_points()


@contextmanager
def gevent_patches() -> Iterator[None]:
    """Let gevent patch in the block, fast, and whatever was imported before."""
    # gevent looks for plugins 25 times while it patches, and each time Python reads a file of every
    # package: with 150 packages that takes 0.2 s of CPU time in each process that starts.
    read, found = metadata.entry_points, entry_points()
    metadata.entry_points = lambda **selection: found.select(**selection)
    thread_locks.install()
    callers.install()
    sleep.install()
    try:
        with gevent_compat.dead_proxies_allowed(), warnings.catch_warnings():
            # That ssl was imported before: early_imports mends what holds the old one.
            warnings.simplefilter("ignore", gevent.monkey.MonkeyPatchWarning)
            yield
    finally:
        metadata.entry_points = read
    # Imported here, because they import ssl or threading, which must happen after the patching.
    from greenline.hub import (
        buffers,
        early_imports,
        epoll,
        frames,
        resolver,
        selectors,
        sockets,
        standard_classes,
        thread_ids,
    )

    standard_classes.restore()
    sockets.install()
    buffers.install()
    epoll.install()
    selectors.install()
    resolver.install()
    early_imports.mend()
    thread_ids.install()
    frames.install()


def hook_libraries() -> None:
    """
    Let the libraries of the application wait in the hub.

    :raises ConfigError: ``GREENLINE_PG_WAIT`` names no callback, or one that is not installed.
    """
    # None of them is imported here: each is patched when the application imports it.
    hook_psycopg2()
    hook_psycopg3()
    hook_sqlalchemy()
    hook_pools()
    hook_pymongo()
    hook_django()
    hook_multiprocessing()
    keep_running_loops()
    hook_uvloop()


def hook_multiprocessing() -> None:
    """Let multiprocessing wait in the hub; call it once in a process."""
    # Not at the top: imported in the arbiter, it would keep unpatched functions.
    from greenline.offload import multiprocess

    multiprocess.install()


def keep_running_loops() -> None:
    """Let each greenlet run an asyncio loop of its own, once the application imports asyncio."""

    def install(_: object) -> None:
        from greenline.hub import loop_selector, running_loop

        running_loop.install()
        loop_selector.install()

    after_import("asyncio", install)


def hook_uvloop() -> None:
    """Let uvloop make asyncio's loops, once the application imports it."""

    def replace(module: ModuleType) -> None:
        from greenline.legacy import uvloop  # imports asyncio, which few applications need

        uvloop.replace(module)

    after_import("uvloop", replace)


def hook_psycopg2() -> None:
    """
    Let psycopg2 wait in the hub, so that other greenlets run meanwhile; once it is imported.

    :raises ConfigError: ``GREENLINE_PG_WAIT`` names no callback, or one that is not installed.
    """
    settings.PG_WAIT.read()  # a wrong value ends the start, and not an import
    after_import("psycopg2", lambda _: _patch_psycopg2())
    # What is done then imports modules of this package, so none of them may be the first to import
    # psycopg2.
    after_import("greenline.postgres", lambda _: _import_psycopg2())


def hook_psycopg3() -> None:
    """Let psycopg 3 wait in the hub at less cost, once the application imports it."""
    from greenline.legacy import psycopg3

    psycopg3.install()


def _import_psycopg2() -> None:
    with suppress(ModuleNotFoundError):  # the arbiter's modules of the package need none
        import psycopg2  # noqa: F401


def _patch_psycopg2() -> None:
    from psycopg2 import extensions
    from psycopg2._psycopg import set_wait_callback

    from greenline.postgres import foreign
    from greenline.postgres.wait import keeping_promises, wait

    foreign.install()
    if settings.PG_WAIT.read() == "psycogreen":
        from psycogreen.gevent import gevent_wait_callback

        set_wait_callback(keeping_promises(gevent_wait_callback))
    else:
        set_wait_callback(wait)
    extensions.set_wait_callback = _unless_psycogreens
    if settings.POOL.read():
        from greenline.postgres import pool_psycopg2

        pool_psycopg2()


def _unless_psycogreens(callback: Any) -> None:
    """Set psycopg2's wait callback; psycogreen's does the same as ours, without the deadline."""
    from psycopg2._psycopg import set_wait_callback

    psycogreen = sys.modules.get("psycogreen.gevent")
    if psycogreen is None or callback is not psycogreen.gevent_wait_callback:
        set_wait_callback(callback)


def hook_sqlalchemy() -> None:
    """Allow nested checkouts from SQLAlchemy's pool, once the application imports SQLAlchemy."""
    from greenline.legacy import sqlalchemy

    sqlalchemy.install()


def hook_pymongo() -> None:
    """Count the time in MongoDB, once the application imports pymongo; share its connections."""
    from greenline.legacy import pymongo_time

    after_import("pymongo", lambda _: pymongo_time.install())
    if settings.POOL.read():
        after_import("pymongo", lambda _: _pool_pymongo())


def _pool_pymongo() -> None:
    try:
        from greenline.mongo import transparent
    except SystemExit:  # after a line that says which versions are supported
        log.warning("GREENLINE_POOL: each MongoClient has connections of its own")
    else:
        transparent.install()


def hook_django() -> None:
    """Note the routes of requests, once the application imports Django."""
    from greenline.legacy import django_routes

    after_import("django.core.handlers.base", lambda _: django_routes.install())


def hook_pools() -> None:
    """Let requests wait for pools that raise an error, once the application imports them."""
    from greenline.legacy import pools

    pools.install()

"""
Keep calls that block below Python away from the hub.

``sqlite3``, drivers that wait in C, file locks, pipes, ``os.system``, ``os.wait*``, ``os.fsync``,
the compression of much data, the hashes of passwords and Pillow are replaced by functions that wait
in the hub or work in native threads, and gRPC's own support for gevent is switched on. Replaced as
well are the functions that ``GREENLINE_OFFLOAD`` names. With ``GREENLINE_OFFLOAD=off`` nothing is
replaced.

Internal: applications import nothing from here.
"""

import builtins
import fcntl
import io
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

from greenline import settings
from greenline.hub.blocking import BLOCKING_DRIVERS
from greenline.hub.namespaces import namespaces
from greenline.offload import names
from greenline.offload.imports import after_import

# By module of a driver, the module of this package that replaces what it has.
DRIVERS = {
    "MySQLdb._mysql": "mysqlclient",
    "mysql.connector.connection_cext": "mysql_connector",
    "pycurl": "pycurl",
    "pyodbc": "pyodbc",
    "zmq.backend": "zmq",
}

# What waits in the hub, or is the hub's own.
GREEN = {"gevent", "greenline", "gunicorn", "psycopg2"}


def patch() -> None:
    """
    Replace the calls that block. Call this after gevent's patches and before the application is
    imported.

    :raises ConfigError: ``GREENLINE_OFFLOAD`` names a package that does not exist.
    """
    callables = settings.OFFLOAD.read()
    if callables is None:
        return
    # Not at the top: at their import these modules keep the functions that gevent has set.
    from greenline.offload import (
        compression,
        disk,
        drivers,
        grpc,
        hashing,
        inside,
        locks,
        pillow,
        pipes,
        processes,
        programs,
        started,
        tasks,
        threads,
    )

    fcntl.flock, fcntl.lockf, fcntl.fcntl = locks.flock, locks.lockf, locks.fcntl_
    os.lockf = locks.os_lockf
    os.read, os.write = pipes.read, pipes.write
    builtins.open = io.open = pipes.Open.open
    os.system, os.waitpid, os.wait = processes.system, processes.waitpid, processes.wait
    os.wait3, os.wait4 = processes.wait3, processes.wait4
    if hasattr(os, "waitid"):  # not on macOS
        os.waitid = processes.waitid
    programs.patch()
    started.patch()
    tasks.patch()
    disk.patch()
    compression.patch()
    hashing.patch()
    pillow.patch()
    drivers.patch()
    grpc.patch()
    # Then: each wait for a socket costs a bit more.
    threads.before_first.append(inside.patch)
    after_import("sqlite3.dbapi2", _patch_sqlite3)
    for module in DRIVERS:
        after_import(module, _patch_driver)
    for name in callables:
        names.require_package(name)
        names.wrap(name)


def _patch_sqlite3(_: ModuleType) -> None:
    from greenline.offload import sqlite

    sqlite.patch()


def _patch_driver(module: ModuleType) -> None:
    ours = import_module(f"{__name__}.{DRIVERS[module.__name__]}")
    ours.patch(module)


def advice(file: str, function: str) -> str | None:
    """
    Return how to keep a function that blocked the hub away from it.

    :param file: the path of its module as in a stack, str.
    :param function: its name as in a stack, str.
    :returns: a sentence; None where no advice is known.
    """
    module = next(
        (name for name, namespace in namespaces() if namespace.get("__file__") == file),
        None,
    )
    if module is None or module == "__main__":
        return None
    package = module.partition(".")[0]
    for driver, (what, instead) in BLOCKING_DRIVERS.items():
        if package == driver.partition(".")[0]:
            return f"{what} waits in C: use {instead}"
    if package in sys.stdlib_module_names or package in GREEN:
        return None
    if not function.isidentifier() or function.startswith("__"):
        return None  # a lambda, for example, is not called by a name
    return (
        f"if it waits below Python: {settings.OFFLOAD.name}={module}:{function} runs it in a "
        "thread; a framework calls its views directly, so of a view name the function that it calls"
    )


def advice_for(stack: Iterable[tuple[str, int, str]]) -> str | None:
    """
    Return the advice for the innermost function of *stack* that has one.

    :param stack: file, line and function of each frame, the outermost first.
    :returns: a sentence; None where no advice is known.
    """
    found = (advice(file, function) for file, _, function in reversed(list(stack)))
    return next(filter(None, found), None)

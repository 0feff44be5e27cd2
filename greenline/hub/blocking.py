"""
Find what would block the hub in an application that was just imported.

1. Only what is imported is looked at, and nothing is imported for it.
2. What says whether it yields is asked; what cannot yield is named with what to use instead.
3. ``patching`` finds who kept an unpatched original. Here is what waits below Python.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from greenline import settings

# A C module that blocks whenever it waits: the driver, and what to use instead.
BLOCKING_DRIVERS = {
    "MySQLdb._mysql": (
        "mysqlclient",
        "PyMySQL with pymysql.install_as_MySQLdb(), or name it in GREENLINE_OFFLOAD",
    ),
    "_mysql_connector": ("mysql.connector's C extension", "connect(use_pure=True)"),
    "cx_Oracle": ("cx_Oracle", "oracledb in thin mode"),
    "pyodbc": ("pyodbc", "a process or gevent's thread pool"),
    "ibm_db": ("ibm_db", "a process or gevent's thread pool"),
    "pylibmc": ("pylibmc", "pymemcache"),
    "pycurl": ("pycurl", "requests or urllib3"),
    "confluent_kafka.cimpl": ("confluent_kafka", "kafka-python, or a process of its own"),
    "_ldap": ("python-ldap", "ldap3"),
}


def found() -> list[tuple[str, str]]:
    """Return the name of each thing that blocks, and a sentence: why, and what to do."""
    return list(_drivers()) + list(_loops()) + list(_threads())


def _drivers() -> Iterator[tuple[str, str]]:
    for module, (name, instead) in BLOCKING_DRIVERS.items():
        if module in sys.modules and name not in (settings.offload() or ()):
            yield name, f"it waits in C and blocks the whole worker meanwhile; use {instead}"
    for module, name, yields, cure in DRIVERS_WITH_A_SWITCH:
        loaded = sys.modules.get(module)
        if loaded is not None and not yields(loaded):
            yield name, f"it waits in C and blocks the whole worker meanwhile; {cure}"


def _loops() -> Iterator[tuple[str, str]]:
    events: Any = sys.modules.get("asyncio.events")
    if events is None:
        return
    if events._get_running_loop() is not None:
        yield (
            "asyncio",
            "a loop runs in this worker already: asyncio.run() and async views will fail",
        )
    policy = getattr(events, "_event_loop_policy", None)
    if type(policy).__module__.partition(".")[0] == "uvloop":
        yield (
            "uvloop",
            "its loops wait in C and block the whole worker meanwhile; "
            "leave asyncio's own policy in place",
        )


def _threads() -> Iterator[tuple[str, str]]:
    """Once patched, threading makes greenlets: a native thread is older."""
    native = sys._current_frames()
    main = threading.main_thread()
    for thread in threading.enumerate():
        if thread is not main and thread.ident in native:
            yield (
                f"thread {thread.name!r}",
                "it was started before the standard library was patched: who waits for it, or for "
                "a thread pool that it belongs to, blocks the whole worker; start it in the "
                "application",
            )


def _psycopg_yields(waiting: ModuleType) -> bool:
    """psycopg 3 waits in C unless it sees, at its import, that select is patched."""
    wait_in_c = getattr(waiting, "wait_c", None)
    return wait_in_c is None or getattr(waiting, "wait", None) is not wait_in_c


# A C module that yields when it is told how: module, driver, whether it yields, what to do.
DRIVERS_WITH_A_SWITCH: tuple[tuple[str, str, Callable[[Any], bool], str], ...] = (
    (
        "psycopg2.extensions",
        "psycopg2",
        lambda extensions: extensions.get_wait_callback() is not None,
        "call greenline.patch.hook_psycopg2() first",
    ),
    (
        "psycopg.waiting",
        "psycopg",
        _psycopg_yields,
        "upgrade it to 3.2, and import it after patching",
    ),
    (
        "grpc._cython.cygrpc",
        "grpc",
        lambda cygrpc: bool(getattr(cygrpc, "g_gevent_activated", False)),
        "call grpc.experimental.gevent.init_gevent() before the first channel",
    ),
    (
        "pymssql._mssql",
        "pymssql",
        lambda mssql: getattr(mssql, "wait_callback", None) is not None,
        "call pymssql.set_wait_callback() with one that waits in gevent",
    ),
    (
        "oracledb",
        "oracledb in thick mode",
        lambda oracledb: bool(oracledb.is_thin_mode()),
        "do without oracledb.init_oracle_client()",
    ),
    (
        "zmq.backend.cython",
        "zmq",
        lambda _: "zmq.green" in sys.modules,
        "import zmq.green as zmq",
    ),
)

"""
Find the parts of an imported application that would block the hub.

Only modules that are already imported are examined; nothing is imported for the check.
:mod:`greenline.hub.patching` finds unpatched originals of the standard library. This module finds
C extensions, event loops and native threads, which wait below Python.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from greenline import settings

# C modules that block in every wait: by module, the name of the driver and a replacement.
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
    """
    Return the drivers, event loops and threads that block the hub.

    :returns: pairs of a name and a sentence with the reason and the remedy.
    """
    return list(_drivers()) + list(_loops()) + list(_threads())


def _drivers() -> Iterator[tuple[str, str]]:
    for module, (name, instead) in BLOCKING_DRIVERS.items():
        if module in sys.modules and name not in (settings.OFFLOAD.read() or ()):
            yield name, f"it waits in C and blocks the whole worker meanwhile; use {instead}"
    for module, name, yields, cure in DRIVERS_WITH_A_SWITCH:
        loaded = sys.modules.get(module)
        # The module itself is asked, because each of these yields only after a call or a setting.
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
    # The private name, because get_event_loop_policy() would create a policy.
    policy = getattr(events, "_event_loop_policy", None)
    if type(policy).__module__.partition(".")[0] == "uvloop":
        yield (
            "uvloop",
            "its loops wait in C and block the whole worker meanwhile; "
            "leave asyncio's own policy in place",
        )


def _threads() -> Iterator[tuple[str, str]]:
    """Yield the native threads: a patched ``threading`` starts greenlets, so these are older."""
    native = sys._current_frames()
    main = threading.main_thread()
    for thread in threading.enumerate():
        if thread is not main and thread.ident in native:
            yield (
                f"thread {thread.name!r}",
                "it was started before the standard library was patched: a wait for it, or for a "
                "thread pool that it belongs to, blocks the whole worker; start it in the "
                "application",
            )


def _psycopg_yields(waiting: ModuleType) -> bool:
    """Return whether psycopg 3 saw at its import that select is patched; else it waits in C."""
    wait_in_c = getattr(waiting, "wait_c", None)
    return wait_in_c is None or getattr(waiting, "wait", None) is not wait_in_c


# C modules that yield after a setting: module, driver, a test whether it yields, the remedy.
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

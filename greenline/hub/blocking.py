"""
Find the parts of an imported application that would block the hub.

Only modules that are already imported are examined; nothing is imported for the check.
:mod:`greenline.hub.patching` finds unpatched originals of the standard library. This module finds
C extensions, event loops and native threads, which wait below Python. The names of the drivers and
what to do about each are those of :mod:`greenline.hub.compatibility`.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from greenline.hub import frames
from greenline.hub.compatibility import records

# C modules that block in every wait: by module, the name of the driver and a replacement.
BLOCKING_DRIVERS = {
    each.extension: (each.name, each.instead) for each in records() if each.extension is not None
}
# Of oracledb, which has two records, the last one's: that of its thick mode.
REMEDIES = {each.name: each.instead for each in records()}


def found() -> list[tuple[str, str]]:
    """
    Return the drivers, event loops and threads that block the hub.

    :returns: pairs of a name and a sentence with the reason and the remedy.
    """
    return list(_drivers()) + list(_loops()) + list(_threads())


def _drivers() -> Iterator[tuple[str, str]]:
    for module, (name, instead) in BLOCKING_DRIVERS.items():
        if module in sys.modules:
            yield name, f"it waits in C and blocks the whole worker meanwhile; use {instead}"
    for module, name, yields in DRIVERS_WITH_A_SWITCH:
        loaded = sys.modules.get(module)
        # The module itself is asked, because each of these yields only after a call or a setting.
        if loaded is not None and not yields(loaded):
            yield name, f"it waits in C and blocks the whole worker meanwhile; {REMEDIES[name]}"


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
    native = frames.native()
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


# C modules that yield after a setting: module, driver, a test whether it yields.
DRIVERS_WITH_A_SWITCH: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("psycopg2.extensions", "psycopg2", lambda module: module.get_wait_callback() is not None),
    ("psycopg.waiting", "psycopg", _psycopg_yields),
    ("oracledb", "oracledb", lambda module: bool(module.is_thin_mode())),
)

"""
The undocumented names of psycopg2 that the runtime uses, checked once, at import.

With a psycopg2 that lacks one of them, its own ``connect`` stays in place, or no statement is
cancelled; one warning says which version it is and which ones are supported.
"""

import ctypes
import logging
from collections.abc import Callable
from typing import Any

import psycopg2
from psycopg2 import _psycopg

PSYCOPG2_SUPPORTED = ">=2.9.5,<2.10"


def _warn(reason: object, consequence: str) -> None:
    logging.getLogger(__name__).warning(
        "psycopg2 %s is not supported (%s): %s; install psycopg2%s",
        psycopg2.__version__.partition(" ")[0],  # type: ignore[attr-defined]
        reason,
        consequence,
        PSYCOPG2_SUPPORTED,
    )


def _misfit() -> str:
    """Say what is different in psycopg2.connect(); return an empty string if nothing is."""
    if not hasattr(_psycopg, "_connect"):
        return "_psycopg._connect is gone"
    connect: Any = psycopg2.connect
    # A monitoring agent may have put a function of its own in place of connect().
    is_own = getattr(connect, "__module__", "") == "psycopg2" and hasattr(connect, "__code__")
    is_called = not is_own or "_connect" in connect.__code__.co_names
    if not hasattr(psycopg2, "_connect") or not is_called:
        return "connect() does not call psycopg2._connect"
    return ""


def _load_libpq() -> Any:
    # Another copy of libpq cannot read the pointers of the one that psycopg2 is linked with.
    library = ctypes.CDLL(_psycopg.__file__)
    library.PQgetCancel.argtypes = [ctypes.c_void_p]
    library.PQgetCancel.restype = ctypes.c_void_p
    library.PQcancel.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    library.PQfreeCancel.argtypes = [ctypes.c_void_p]
    return library


def _load_copying() -> Any:
    """Return libpq's functions that never wait; they are called with the interpreter's lock."""
    library = ctypes.PyDLL(_psycopg.__file__)
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    for name, returns, *takes in (
        ("PQputCopyData", number, pointer, text, number),
        ("PQputCopyEnd", number, pointer, text),
        ("PQgetCopyData", number, pointer, ctypes.POINTER(pointer), number),
        ("PQflush", number, pointer),
        ("PQconsumeInput", number, pointer),
        ("PQisBusy", number, pointer),
        ("PQgetResult", pointer, pointer),
        ("PQresultStatus", number, pointer),
        ("PQresultErrorMessage", text, pointer),
        ("PQresultErrorField", text, pointer, number),
        ("PQcmdTuples", text, pointer),
        ("PQerrorMessage", text, pointer),
        ("PQclear", None, pointer),
        ("PQfreemem", None, pointer),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = returns, takes
    # Without argtypes, which take as long as the call: it gets values of ctypes.
    library.PQgetlineAsync.restype = number
    return library


# Whether psycopg2.connect() calls ``psycopg2._connect``, with the complete connection string.
# ``greenline.postgres.foreign`` puts another function there, which calls this one.
calls_connect = True
psycopg2_connect: Callable[..., Any]
if reason := _misfit():
    calls_connect = False
    psycopg2_connect = psycopg2.connect
    _warn(reason, "connections of the application's own are not shared, and wait for no slot")
else:
    psycopg2_connect = _psycopg._connect

# The libpq that psycopg2 is linked with, None if its functions cannot be reached.
libpq: Any = None
copying: Any = None
try:
    libpq = _load_libpq()
    copying = _load_copying()
except (AttributeError, OSError) as error:
    _warn(error, "an interrupted statement goes on at the server")

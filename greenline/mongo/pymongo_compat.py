"""
The undocumented names of pymongo that the client builds on, checked once, at import.

A pymongo without one of them, or with another signature, ends the process with one line that says
which version it is and which ones are supported.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pymongo

# The status with which a worker of gunicorn ends the arbiter, too.
WORKER_BOOT_ERROR = 3
PYMONGO_SUPPORTED = ">=4.19,<4.21"


def _refuse(reason: str) -> NoReturn:
    print(
        f"greenline: pymongo {pymongo.version} is not supported ({reason}): "
        f"install pymongo{PYMONGO_SUPPORTED}",
        file=sys.stderr,
        flush=True,
    )
    # With the status 1 of sys.exit(text), gunicorn would start the worker again and again.
    sys.exit(WORKER_BOOT_ERROR)


try:
    from pymongo import MongoClient, _csot
    from pymongo.monitoring import _LISTENERS as LISTENERS
    from pymongo.network_layer import NetworkingInterface
    from pymongo.read_preferences import Primary
    from pymongo.server_selectors import writable_server_selector
    from pymongo.synchronous.pool import Connection, Pool
    from pymongo.synchronous.server import Server
    from pymongo.synchronous.topology import Topology
    from pymongo.topology_description import TOPOLOGY_TYPE
except ImportError as error:
    _refuse(str(error))

# What is called or overridden, with the parameters that it has in the supported versions; "..."
# stands for more of them, which are passed on.
PYMONGO_SIGNATURES: tuple[tuple[str, Any, str], ...] = (
    ("_get_conn", Pool, "self checkout_started_time handler"),
    ("connect", Pool, "self handler"),
    ("_perished", Pool, "self conn"),
    ("checkin", Pool, "self conn"),
    ("remove_stale_sockets", Pool, "self reference_generation"),
    ("_get_topology", MongoClient, "self"),
    (
        "_select_server",
        MongoClient,
        "self server_selector session operation address deprioritized_servers operation_id",
    ),
    (
        "_retry_internal",
        MongoClient,
        "self func session bulk operation is_read address read_pref retryable operation_id "
        "is_run_command is_aggregate_write ...",
    ),
    ("_checkout", MongoClient, "self server session"),
    ("_conn_from_server", MongoClient, "self read_preference server session"),
    ("_ensure_session", MongoClient, "self session"),
    ("get_timeout", _csot, ""),
    ("remaining", _csot, ""),
    ("set_rtt", _csot, "rtt"),
    ("get_rtt", _csot, ""),
)


def check() -> None:
    """
    Prove that pymongo's functions have the parameters that the client knows.

    :raises SystemExit: one is missing or has others; the one line names it and the versions that
        are supported.
    """
    for name, owner, expected in PYMONGO_SIGNATURES:
        function: Callable[..., Any] | None = getattr(owner, name, None)
        if function is None:
            _refuse(f"{owner.__name__}.{name} is gone")
        parameters = inspect.signature(function).parameters
        # A monitoring agent may have wrapped it in a function of any arguments.
        is_wrapped = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
        found, begin = " ".join(parameters), expected.removesuffix(" ...")
        is_known = found.startswith(f"{begin} ") and begin != expected
        if not (found == begin or is_known or is_wrapped):
            _refuse(f"{owner.__name__}.{name}({found.replace(' ', ', ')})")


check()

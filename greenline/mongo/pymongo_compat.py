"""
The undocumented names of pymongo that the client builds on, checked once, at import.

A pymongo without one of them, or with another signature, is refused with one line that says which
version it is and which ones are supported.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pymongo

from greenline.errors import ConfigError

PYMONGO_SUPPORTED = ">=4.19,<4.21"


def _misfit(reason: str) -> ConfigError:
    return ConfigError(
        f"pymongo {pymongo.version} is not supported ({reason}): install pymongo{PYMONGO_SUPPORTED}"
    )


try:
    from pymongo import MongoClient, _csot
    from pymongo.network_layer import NetworkingInterface
    from pymongo.read_preferences import Primary
    from pymongo.server_selectors import writable_server_selector
    from pymongo.synchronous.pool import Connection, Pool
    from pymongo.synchronous.server import Server
    from pymongo.topology_description import TOPOLOGY_TYPE
except ImportError as error:
    raise _misfit(str(error)) from None

# What is called or overridden, with the parameters that it has in the supported versions.
PYMONGO_SIGNATURES: tuple[tuple[str, Any, str], ...] = (
    ("_get_conn", Pool, "self checkout_started_time handler"),
    ("connect", Pool, "self handler"),
    ("_perished", Pool, "self conn"),
    ("checkin", Pool, "self conn"),
    (
        "_select_server",
        MongoClient,
        "self server_selector session operation address deprioritized_servers operation_id",
    ),
    (
        "_retry_internal",
        MongoClient,
        "self func session bulk operation is_read address read_pref retryable operation_id "
        "is_run_command is_aggregate_write",
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

    :raises ConfigError: one is missing or has others; the line names it and the versions that are
        supported.
    """
    for name, owner, expected in PYMONGO_SIGNATURES:
        function: Callable[..., Any] | None = getattr(owner, name, None)
        if function is None:
            raise _misfit(f"{owner.__name__}.{name} is gone")
        parameters = inspect.signature(function).parameters
        # A monitoring agent may have wrapped it in a function of any arguments.
        is_wrapped = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
        if (found := " ".join(parameters)) != expected and not is_wrapped:
            raise _misfit(f"{owner.__name__}.{name}({found.replace(' ', ', ')})")


check()

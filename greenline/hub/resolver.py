"""
Resolve numeric addresses at once.

gevent's resolver asks for all addresses in its threads, which are ten. That costs a connection to a
numeric address eight times the CPU time of the call, and lets it wait for look-ups of names where a
name server does not answer.
"""

from _socket import getaddrinfo  # which the patching leaves alone
from socket import AI_NUMERICHOST, AI_NUMERICSERV, gaierror
from typing import Any

from gevent.resolver.thread import Resolver

NUMERIC = AI_NUMERICHOST | AI_NUMERICSERV

_resolve: Any = Resolver.getaddrinfo


def install() -> None:
    """Replace the method of gevent's resolver; one that ``GEVENT_RESOLVER`` names stays."""
    Resolver.getaddrinfo = _resolve_numeric_first  # type: ignore[assignment,method-assign]


def _resolve_numeric_first(
    self: Resolver,
    host: Any,
    port: Any,
    family: int = 0,
    type: int = 0,  # noqa: A002
    proto: int = 0,
    flags: int = 0,
) -> Any:
    try:
        # These flags forbid every look-up.
        return getaddrinfo(host, port, family, type, proto, flags | NUMERIC)
    except gaierror:  # a name, or an error of which the text is that of the call without the flags
        return _resolve(self, host, port, family, type, proto, flags)

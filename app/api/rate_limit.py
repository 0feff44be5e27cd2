"""
How much one client may ask: a kept library counts, in this worker's memory.

Each worker counts for itself, so that the service allows up to as many times more as it has
workers; a limit that holds exactly belongs into the proxy.
"""

from collections.abc import Iterable, MutableMapping
from math import ceil
from time import time
from typing import Any

from flask import Flask
from limits import RateLimitItem, parse_many
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from app.errors import TooManyRequests
from greenline.errors import ConfigError

# Where the answer finds what it is to say of it, as draft-ietf-httpapi-ratelimit-headers has it.
HEADERS = "greenline.rate_limit"


class RateLimit:
    """
    So many requests in such a time, as *text* says: ``100/minute``, or several with ``;`` between.

    Raises:
        ConfigError: *text* says no such thing.
    """

    def __init__(self, text: str) -> None:
        try:
            self._limits = parse_many(text)
        except ValueError:
            self._limits = []
        if not all(each.amount and each.multiples for each in self._limits) or not self._limits:
            raise ConfigError(f"{text!r} is no limit like 100/minute or 10/second;500/hour")
        self._counter = FixedWindowRateLimiter(MemoryStorage())
        policies = [f'"{each}";q={each.amount};w={each.get_expiry()}' for each in self._limits]
        self._policy = ("RateLimit-Policy", ", ".join(policies))

    def take(self, who: str, environ: MutableMapping[str, Any]) -> None:
        """
        Count one request of *who*, and leave the headers about it in *environ*.

        Raises:
            TooManyRequests: it is one too many.
        """
        over = [limit for limit in self._limits if not self._counter.hit(limit, who)]
        tightest, reset_s, left = min(
            (self._state(limit, who) for limit in over or self._limits),
            key=lambda state: (state[2], -state[1]),
        )
        environ[HEADERS] = (
            self._policy,
            ("RateLimit", f'"{tightest}";r={left};t={reset_s}'),
        )
        if over:
            raise TooManyRequests(f"more than {tightest} was asked", reset_s)

    def _state(self, limit: RateLimitItem, who: str) -> tuple[RateLimitItem, int, int]:
        """Return *limit*, the seconds until it begins anew, and how many are left until then."""
        window = self._counter.get_window_stats(limit, who)
        return limit, max(ceil(window.reset_time - time()), 1), window.remaining


def register(app: Flask) -> None:
    """Let the answers of *app* say how much is left."""
    app.wsgi_app = _Told(app.wsgi_app)  # type: ignore[method-assign]


class _Told:
    """A WSGI application around *application*."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            return start_response(status, [*headers, *environ.get(HEADERS, ())], exc_info)

        answer: Iterable[bytes] = self._application(environ, start)
        return answer

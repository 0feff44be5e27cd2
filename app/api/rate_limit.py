"""
Limit the rate of each client's requests, with counts of the host or of a shared store.

The library ``limits`` counts. While the shared store cannot be reached, each host uses its own
counts: a missing limit is better than refusing all requests.
"""

import logging
from collections.abc import Mapping, MutableMapping
from math import ceil
from time import monotonic, time
from typing import Any
from urllib.parse import urlsplit

from limits import RateLimitItem, parse_many
from limits.errors import ConfigurationError, StorageError
from limits.storage import Storage, storage_from_string
from limits.strategies import FixedWindowRateLimiter

from app.errors import TooManyRequests
from greenline.errors import ConfigError

STORE_RETRY_S = 5.0  # after a failure of the shared store
# By default redis-py waits without a limit and has 100 connections, fewer than a worker may have
# requests in progress.
REDIS = {"socket_connect_timeout": 1, "socket_timeout": 1, "max_connections": 10_000}

log = logging.getLogger(__name__)

# In environ: the headers of draft-ietf-httpapi-ratelimit-headers for the response.
HEADERS_KEY = "greenline.rate_limit"


class RateLimit:
    """
    A limit of requests per time window and client.

    :param text: ``100/minute``, or several with ``;`` between them.
    :param own: the counts of this host.
    :param shared: the counts of several hosts, None for none. Default None.
    :raises ConfigError: *text* is no limit.
    """

    def __init__(self, text: str, own: Storage, shared: Storage | None = None) -> None:
        try:
            self._limits = parse_many(text)
        except ValueError:
            self._limits = []
        if not all(each.amount and each.multiples for each in self._limits) or not self._limits:
            raise ConfigError(f"{text!r} is no limit like 100/minute or 10/second;500/hour")
        self._own = FixedWindowRateLimiter(own)
        self._shared = None if shared is None else FixedWindowRateLimiter(shared)
        self._shared_failed_until: float | None = None
        policies = [f'"{each}";q={each.amount};w={each.get_expiry()}' for each in self._limits]
        self._policy = ("RateLimit-Policy", ", ".join(policies))

    def take(self, client: str, environ: MutableMapping[str, Any]) -> None:
        """
        Count one request, and store its response headers in *environ*.

        :param client: the client, as the key of its counts.
        :param environ: the request's.
        :raises TooManyRequests: the limit is exceeded.
        """
        counter = self._own if self._shared is None else self._counter(self._shared)
        try:
            self._take(counter, client, environ)
        except StorageError as error:
            # Logged once for an outage, not at each request.
            if self._shared_failed_until is None:
                log.warning("RATE_LIMIT_STORAGE: %s; this host counts by itself meanwhile", error)
            self._shared_failed_until = monotonic() + STORE_RETRY_S
            self._take(self._own, client, environ)
        else:
            if counter is self._shared and self._shared_failed_until is not None:
                self._shared_failed_until = None
                log.info("RATE_LIMIT_STORAGE: the store answers again")

    def _counter(self, shared: FixedWindowRateLimiter) -> FixedWindowRateLimiter:
        # Not asked again for STORE_RETRY_S: each attempt may cost a request a second.
        until = self._shared_failed_until
        return self._own if until is not None and monotonic() < until else shared

    def _take(
        self, counter: FixedWindowRateLimiter, client: str, environ: MutableMapping[str, Any]
    ) -> None:
        # Every limit counts the request, also after one that is exceeded.
        over = [limit for limit in self._limits if not counter.hit(limit, client)]
        # The headers describe one limit: of the exceeded ones, or of all, the one with the fewest
        # requests left.
        tightest, reset_s, left = min(
            (_state(counter, limit, client) for limit in over or self._limits),
            key=lambda state: (state[2], -state[1]),
        )
        environ[HEADERS_KEY] = (
            self._policy,
            ("RateLimit", f'"{tightest}";r={left};t={reset_s}'),
        )
        if over:
            raise TooManyRequests(f"more than {tightest} was asked", reset_s)


def _state(
    counter: FixedWindowRateLimiter, limit: RateLimitItem, client: str
) -> tuple[RateLimitItem, int, int]:
    """Return *limit*, the seconds until its window ends, and the requests left until then."""
    window = counter.get_window_stats(limit, client)
    return limit, max(ceil(window.reset_time - time()), 1), window.remaining


def shared_storage(url: str) -> Storage:
    """
    Return the store that several hosts share, without connecting to it.

    :param url: an address that ``limits`` accepts, such as ``redis://cache.example:6379``.
    :raises ConfigError: the kind of store is unknown, or its library is not installed.
    """
    scheme = urlsplit(url).scheme
    options: dict[str, Any] = REDIS if scheme in ("redis", "rediss", "redis+unix") else {}
    try:
        storage = storage_from_string(url, wrap_exceptions=True, **options)
    except ConfigurationError as error:
        # The error's text may contain the whole URL, with a password: neither it nor the cause is
        # shown.
        raise ConfigError(f"no store of the library limits: {str(error).split(' : ')[0]}") from None
    if not isinstance(storage, Storage):
        raise ConfigError(f"{scheme}:// is for asyncio")
    return storage


def add(environ: Mapping[str, Any], headers: list[tuple[str, str]]) -> None:
    """Add the headers of the rate limit to those of an answer."""
    headers += environ.get(HEADERS_KEY, ())

"""
Keep values by key in the memory of one worker, and let one caller load a key for all others.

A value is as old as its load, from the beginning of that: what was written after the load began may
be missing in it. So a value whose key or tag is invalidated while it is loaded is not kept, and a
caller that asks afterwards gets that of a next load, which begins when this one has ended: however
many writes there are, a key is loaded by one at a time.
"""

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection
from functools import wraps
from inspect import iscoroutinefunction, signature
from itertools import count
from math import inf
from time import monotonic
from typing import Any, ParamSpec, TypeVar

from greenline.cache.arguments import (
    MAX_KEY_LENGTH,
    check_bytes,
    check_key,
    check_seconds,
    check_str,
    checked,
)
from greenline.cache.entries import Entries, Entry, made
from greenline.cache.feed import Feed
from greenline.cache.flight import Flight, NotShared, is_interruption
from greenline.cache.shared import Loaded, SharedLoads
from greenline.cache.statistics import CacheStatistics
from greenline.cache.values import Kept, is_unchanging, keep
from greenline.telemetry import counters

log = logging.getLogger(__name__)

RETRY_S, MAX_FAILED, MAX_INVALIDATED = 1.0, 1_000, 1_000

P = ParamSpec("P")
T = TypeVar("T")

_caches: "weakref.WeakSet[Cache]" = weakref.WeakSet()


class Cache:
    """
    A cache of values by key, bounded in bytes: the least recently used ones make room.

    Greenlets and threads may share it.

    :param max_bytes: memory of keys, values and the bookkeeping, int.
    :param ttl_s: seconds for which a value is fresh, float; they begin with its load.
    :param stale_s: seconds after that in which a value is returned at once while a greenlet of its
        own loads the next one, outside of any request. Default 0: the next caller loads.
    :param stale_if_error_s: seconds after ``ttl_s`` in which a value is returned if its load fails.
        Default 0: the error is raised.
    :param none_ttl_s: seconds for which None, "there is none", is fresh; 0 keeps it not at all.
        Default: ``ttl_s``.
    :param feed: invalidations by the database, as ``greenline.postgres.open().feed()`` returns
        them. Default: none.
    :param shared_loads: a name, str. Caches of the host that have the same one load a key once for
        all workers that want it at that moment; no other application of the user may have it. What
        is shared is pickled. Default: each worker loads for itself.
    :param release: of the code that loads, str. Caches with another one share no loads. Default "".
    :param name: of the cache in the metrics, str. Default "default".
    :param clock: returns monotonic seconds. Default ``time.monotonic``.
    :raises ValueError: an argument is out of its range.
    :raises TypeError: an argument is no number.
    :raises ConfigError: the file of *shared_loads* cannot be used.
    """

    def __init__(
        self,
        max_bytes: int,
        ttl_s: float,
        *,
        stale_s: float = 0.0,
        stale_if_error_s: float = 0.0,
        none_ttl_s: float | None = None,
        feed: Feed | None = None,
        shared_loads: str | None = None,
        release: str = "",
        name: str = "default",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        check_bytes("max_bytes", max_bytes)
        check_seconds("ttl_s", ttl_s)
        check_seconds("stale_s", stale_s, may_be_0=True)
        check_seconds("stale_if_error_s", stale_if_error_s, may_be_0=True)
        check_seconds("none_ttl_s", 0.0 if none_ttl_s is None else none_ttl_s, may_be_0=True)
        self.name = name
        self.max_bytes = max_bytes
        self.ttl_s = ttl_s
        self._none_ttl_s = none_ttl_s
        self.stale_s = stale_s
        self._stale_if_error_s = stale_if_error_s
        self._clock = clock
        self._feed = feed
        self._shared = None if shared_loads is None else SharedLoads(shared_loads)
        self._release = release
        self._statistics = statistics = CacheStatistics()
        self._lock = threading.Lock()
        # The key and tag of each invalidation to come, None for everything. A critical section that
        # looks at values or loads begins with them.
        self._pending: deque[tuple[str | None, str | None] | None] = deque()
        self._entries = Entries(max_bytes, statistics)
        self._flights: dict[str, Flight] = {}
        # Those that were invalidated and have not ended.
        self._invalid: dict[str, Flight] = {}
        # When a stale value may be loaded again whose last load has failed.
        self._retry_s: dict[str, float] = {}
        self._functions = count()
        # When each key or tag was invalidated last, by its hash, and everything else at the latest.
        self._invalidated_s: dict[int, float] = {}
        self._all_invalidated_s = 0.0
        _count(self)
        _caches.add(self)
        # Last: another thread may invalidate it from now on. What was before is not known.
        if feed is not None:
            feed.attach(self)
        self._all_invalidated_s = clock()

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<Cache {self.name} {stats}>"

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return True  # also when it is empty: "cache or another" means this one

    @property
    def shares_loads(self) -> bool:
        """Whether a load is one for several workers of the host."""
        return self._shared is not None

    def stats(self) -> dict[str, int]:
        """Return the counts since the cache was made, and its present size."""
        return {**self._statistics.totals(), **self.size()}

    def size(self) -> dict[str, int]:
        """Return the number of values, and the bytes that they and the cache may take."""
        size_bytes = self._entries.size_bytes()
        return {"values": len(self), "size_bytes": size_bytes, "max_bytes": self.max_bytes}

    def get(self, key: str) -> Any:
        """
        Return the value of *key* if there is a fresh one, None otherwise; nothing is loaded.

        A value that is found counts as a hit; one that is not is not counted.

        :param key: as of :meth:`get_or_load`.
        :raises ValueError: the key is too long.
        :raises TypeError: the key is no str.
        """
        check_key(key)
        confirmed_s = self._pull()
        with self._lock:
            if self._pending:
                self._invalidate_pending()
            now_s, entry = self._clock(), self._entries.find(key)
            if (
                entry is None
                or not self._is_current(entry, now_s, confirmed_s)
                or now_s - entry.begun_s >= entry.ttl_s
            ):
                return None
            self._statistics.hits += 1
        return entry.kept.value()

    def get_or_load(
        self,
        key: str,
        load: Callable[[], T],
        *,
        tags: Collection[str] = (),
        ttl_s: float | None = None,
        note: Callable[[str], object] = bool,
    ) -> T:
        """
        Return the value of *key*, from the cache or from *load*.

        Of the callers that find no value, one loads. The others wait for it, each until its own
        deadline, and get its value, or its error, which is not kept. If that one is interrupted, by
        its deadline or because its client has gone, another takes over; a limit of the load itself
        that passes is an error of the load. A caller that asks when the load has taken so long that
        its value would be too old to be returned begins another one.

        :param key: at most 1,024 characters, str.
        :param load: returns the value. One that can change must be picklable, and each caller but
            the one that loads gets a copy.
        :param tags: names under which :meth:`invalidate` finds the value, besides its key; as long
            as a key at most.
        :param ttl_s: seconds for which the value is fresh, float. Default: the cache's.
        :param note: is called with where the value comes from: "hit", "stale" (after its time),
            "collapsed" (another caller has loaded it, or another worker) or "miss" (it is loaded
            now); the last call counts. Default: does nothing.
        :raises NotKept: the value cannot be kept: a generator, a file, a connection.
        :raises DeadlineExceeded: the caller's deadline passed while another one loaded.
        :raises RuntimeError: *load* asks for the key that it loads.
        :raises ValueError: the key or a tag is too long.
        :raises TypeError: the key is no str, or *tags* is one.
        """
        check_key(key)
        has_waited = False
        while True:
            confirmed_s = self._pull()
            # Critical section: exactly one caller begins to load. Loads run outside of it, and so
            # does what a value runs when it is unpickled.
            with self._lock:
                if self._pending:
                    self._invalidate_pending()
                now_s = self._clock()
                entry = self._entries.find(key)
                if entry is not None and not self._is_current(entry, now_s, confirmed_s):
                    entry = None
                age_s = inf if entry is None else now_s - entry.begun_s - entry.ttl_s
                if age_s < 0:
                    self._statistics.hits += 1
                else:
                    flight = self._flights.get(key)
                    # One that has not begun is as young as can be.
                    loads = flight is None or (
                        flight.has_begun and not self._may_wait_for(flight, now_s, confirmed_s)
                    )
                    # Its last load has failed a moment ago.
                    if age_s < self.stale_s and now_s < self._retry_s.get(key, 0.0):
                        loads = False
                    if loads:
                        tags = checked(tags, ttl_s)
                        if flight is not None:
                            flight.is_valid = False  # nothing invalidates it from now on
                        fresh_s = self.ttl_s if ttl_s is None else ttl_s
                        after = self._invalid.get(key)
                        flight = self._flights[key] = Flight(tags, now_s, fresh_s, after)
                        self._statistics.loads += 1
                    if age_s < self.stale_s:
                        self._statistics.stale += 1
                    elif not loads:
                        self._statistics.waits += not has_waited
                        has_waited = True
            if entry is not None and age_s < 0:
                note("hit")
                return entry.kept.value()  # type: ignore[no-any-return]
            if entry is not None and age_s < self.stale_s:
                if flight is not None and loads:
                    self._load_apart(key, flight, load)
                note("stale")
                return entry.kept.value()  # type: ignore[no-any-return]
            assert flight is not None  # noqa: S101 # nosec B101
            try:
                if loads:
                    return self._load(key, flight, load, note)
                note("collapsed")
                if flight.loader == threading.get_ident():
                    raise RuntimeError(f"the load of {key!r} asks for {key!r} itself")
                if (kept := flight.wait()) is not None:
                    return kept.value()  # type: ignore[no-any-return]
            except NotShared:
                raise
            except Exception:
                kept = self.kept_for_an_error(key, note)
                if kept is None:
                    raise
                return kept.value()  # type: ignore[no-any-return]

    def cached(
        self, *, tags: Collection[str] = (), ttl_s: float | None = None
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """
        Return a decorator of functions, whose results it keeps by the function and its arguments.

        The arguments must be of types that cannot change, such as str and int. :meth:`invalidate`
        takes the key that the function's ``key()`` returns for arguments. With arguments that make
        a longer key than a cache has the function is called each time. A coroutine function is a
        TypeError.

        :param tags: as of :meth:`get_or_load`.
        :param ttl_s: as of :meth:`get_or_load`.
        """
        tags = checked(tags, ttl_s)

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            name = f"{function.__module__}.{function.__qualname__}"
            if iscoroutinefunction(function):
                raise TypeError(f"{name} is a coroutine function: its coroutines cannot be kept")
            if self._shared is not None and "<" in function.__qualname__:
                raise TypeError(
                    f"{name} may be another function in another worker: with shared_loads give it a"
                    " name of its module, or call get_or_load()"
                )
            number = next(self._functions)  # closures of one function have one name
            parameters = signature(function)

            def key(*args: P.args, **kwargs: P.kwargs) -> str:
                bound = parameters.bind(*args, **kwargs)
                bound.apply_defaults()
                for value in (*bound.args, *bound.kwargs.values()):
                    # Two different objects of another type may have one repr().
                    if not is_unchanging(value):
                        kind = type(value).__qualname__
                        raise TypeError(f"{name}(): no key can be made of a {kind}: {value!r:.40}")
                # Sorted: the names of a **kwargs are in the order of the call.
                return f"{name} {number}{bound.args!r}{dict(sorted(bound.kwargs.items())) or ''}"

            @wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> T:
                found = key(*args, **kwargs)
                if len(found) > MAX_KEY_LENGTH:
                    return function(*args, **kwargs)
                return self.get_or_load(
                    found, lambda: function(*args, **kwargs), tags=tags, ttl_s=ttl_s
                )

            call.key = key  # type: ignore[attr-defined]
            return call

        return decorate

    def invalidate(self, key: str | None = None, *, tag: str | None = None) -> None:
        """
        Forget the value of *key*, all values with *tag*, or both; also those that are loaded now.

        Call it before and after a write whose outcome is unknown, and after any other one. A name
        that is too long for a key or tag has no effect.

        :param key: str, default None: no key.
        :param tag: str, default None: no tag.
        :raises TypeError: neither is given, or one is no str.
        """
        if key is not None:
            check_str("key", key)
        if tag is not None:
            check_str("tag", tag)
        if key is None and tag is None:
            raise TypeError("invalidate() needs a key or a tag; clear() forgets everything")
        self._invalidate((_possible(key), _possible(tag)))

    def clear(self) -> None:
        """Forget all values; also those that are loaded now."""
        self._invalidate(None)

    def _invalidate(self, names: tuple[str | None, str | None] | None) -> None:
        self._pending.append(names)
        # It does not wait: this may be a finalizer that garbage collection has called in a critical
        # section of the same thread.
        if self._lock.acquire(blocking=False):
            try:
                self._invalidate_pending()
            finally:
                self._lock.release()

    def _invalidate_pending(self) -> None:
        """Invalidate what is pending; the lock is held."""
        while self._pending:
            names = self._pending.popleft()
            self._statistics.invalidations += 1
            if names is None:
                self._all_invalidated_s = self._clock()
                self._entries.clear()
                self._leave(list(self._flights))
                continue
            key, tag = names
            if self._shared is not None:
                self._note_invalidation(key, tag)
            if key is not None:
                self._entries.pop(key, None)
            if tag is not None:
                self._entries.invalidate(tag)
            self._leave([k for k, f in self._flights.items() if k == key or tag in f.tags])

    def _leave(self, keys: Collection[str]) -> None:
        """Keep nothing of those loads of *keys* that have begun; the next callers get another's."""
        for key in keys:
            if self._flights[key].has_begun:
                flight = self._invalid[key] = self._flights.pop(key)
                flight.is_valid = False

    def _pull(self) -> float:
        """Invalidate what the database has announced; return what :meth:`Feed.pull` returns."""
        return 0.0 if self._feed is None else self._feed.pull()

    def _is_current(
        self, loaded: Entry | Flight | Loaded, now_s: float, confirmed_s: float
    ) -> bool:
        """Return False where the database may have changed it since."""
        return self._feed is None or self._feed.is_current(loaded.begun_s, now_s, confirmed_s)

    def _may_wait_for(self, load: Flight | Loaded, now_s: float, confirmed_s: float) -> bool:
        """Return whether a caller that asks now may take what *load* gives."""
        # While the feed is interrupted too: the loads of one key must not become many.
        is_young = now_s - load.begun_s < load.ttl_s + max(self.stale_s, self._stale_if_error_s)
        return is_young and self._is_current(load, now_s, max(confirmed_s, 0.0))

    def kept_for_an_error(self, key: str, note: Callable[[str], object]) -> Kept | None:
        """
        Return what may be returned in place of the error of a load that has ended now, and note it.
        """
        confirmed_s = self._pull()
        with self._lock:
            self._invalidate_pending()
            now_s, entry = self._clock(), self._entries.find(key)
            if (
                entry is None
                or not self._is_current(entry, now_s, confirmed_s)
                or (age_s := now_s - entry.begun_s - entry.ttl_s) >= self._stale_if_error_s
            ):
                return None
            is_fresh = age_s < 0  # another load has ended before
            self._statistics.hits += is_fresh
            self._statistics.stale += not is_fresh
        note("hit" if is_fresh else "stale")
        return entry.kept

    def _load_apart(self, key: str, flight: Flight, load: Callable[[], object]) -> None:
        """Load in a thread, which is a greenlet where the standard library is patched."""

        def run() -> None:
            try:
                self._load(key, flight, load)
            except Exception:
                log.warning("no new value was loaded for the stale one of %r", key, exc_info=True)
                with self._lock:
                    if len(self._retry_s) >= MAX_FAILED:
                        self._retry_s.clear()
                    self._retry_s[key] = self._clock() + RETRY_S

        try:
            # A thread has an empty context: no request, no deadline, no client.
            threading.Thread(target=run, daemon=True).start()
        except RuntimeError as error:  # there are too many threads
            self._end(key, flight, error)

    def _load(
        self, key: str, flight: Flight, load: Callable[[], T], note: Callable[[str], object] = bool
    ) -> T:
        flight.loader = threading.get_ident()
        try:
            note("miss")
            if flight.after is not None:
                self._begin(key, flight, flight.after)
            if self._shared is None:
                value = self._loaded(key, flight, load)
            else:
                value = self._load_once(self._shared, key, flight, load, note)
        except BaseException as error:
            self._end(key, flight, error)
            raise
        self._end(key, flight)
        return value

    def _begin(self, key: str, flight: Flight, after: Flight) -> None:
        """Begin to load when the load before it has ended."""
        if after.loader != flight.loader:  # one that asks for its own key cannot wait for itself
            after.wait_for_end()
        with self._lock:
            if self._invalid.get(key) is after:  # it is stuck: the next ones need not wait as well
                del self._invalid[key]
            flight.begun_s, flight.after = self._clock(), None

    def _loaded(self, key: str, flight: Flight, load: Callable[[], T]) -> T:
        value = load()
        flight.kept = kept = keep(value)
        if value is None and self._none_ttl_s is not None:
            flight.ttl_s = self._none_ttl_s
        self._keep(key, flight, kept, flight.ttl_s)
        return value

    def _load_once(
        self,
        shared: SharedLoads,
        key: str,
        flight: Flight,
        load: Callable[[], T],
        note: Callable[[str], object],
    ) -> T:
        """Load, or take what another worker of the host loads at this moment."""
        shared_key = f"{self._release}{key}"
        with shared.turn(shared_key) as found:
            if found is not None and self._is_usable(found, key, flight.tags):
                self._statistics.shared += 1
                note("collapsed")
                flight.begun_s, flight.kept = found.begun_s, found.kept
                self._keep(key, flight, found.kept, found.ttl_s)
                return found.kept.value()  # type: ignore[no-any-return]
            flight.begun_s = self._clock()
            value = self._loaded(key, flight, load)
            self._pull()
            kept = flight.kept if flight.is_valid else None
            shared.publish(shared_key, kept and Loaded(kept, flight.begun_s, flight.ttl_s))
            return value

    def _note_invalidation(self, *names: str | None) -> None:
        now_s = self._clock()
        if len(self._invalidated_s) >= MAX_INVALIDATED:
            self._invalidated_s.clear()
            self._all_invalidated_s = now_s
        for name in names:
            if name is not None:
                # Not the text, which may be long. Two names with one hash count as one.
                self._invalidated_s[hash(name)] = now_s

    def _is_usable(self, found: Loaded, key: str, tags: Collection[str]) -> bool:
        """Return whether a value that another worker has loaded is one that this one might have."""
        confirmed_s = self._pull()
        with self._lock:
            self._invalidate_pending()
            now_s = self._clock()
            # What this worker has seen invalidated since may be missing in it.
            last_s = max(
                self._all_invalidated_s,
                *(self._invalidated_s.get(hash(name), 0.0) for name in (key, *tags)),
            )
        return found.begun_s > last_s and self._may_wait_for(found, now_s, confirmed_s)

    def _end(self, key: str, flight: Flight, error: BaseException | None = None) -> None:
        is_interrupted = error is not None and is_interruption(error)
        with self._lock:
            if isinstance(error, NotShared):
                if error.forgets:
                    self._entries.pop(key, None)
            elif error is not None and not is_interrupted:
                self._statistics.failures += 1
            for flights in (self._flights, self._invalid):
                if flights.get(key) is flight:  # not one that began after an invalidation
                    del flights[key]
        flight.end(error, is_interrupted)

    def _keep(self, key: str, flight: Flight, kept: Kept, ttl_s: float) -> None:
        tags = flight.tags
        entry = made(key, kept, flight.begun_s, ttl_s, tags)
        with self._lock:
            self._invalidate_pending()
            if not flight.is_valid:
                return
            fits = self._entries.fits(entry, tags)
            self._statistics.too_large += not fits
            if not fits or ttl_s == 0:
                self._entries.pop(key, None)
                return
            self._entries.keep(key, entry, tags)


def _possible(name: str | None) -> str | None:
    """Return *name*, None where it is too long for the key or a tag of a value."""
    return name if name is None or len(name) <= MAX_KEY_LENGTH else None


def _count(cache: Cache) -> None:
    """Add the cache to the metrics."""
    part, size = f"{counters.CACHE}{cache.name}", weakref.WeakMethod(cache.size)
    # It stays when the cache is gone: its counts must not vanish.
    counters.add(part, lambda: _size_of(size()), counters.growth_of(cache._statistics.totals))


def _size_of(size: Callable[[], dict[str, int]] | None) -> dict[str, int]:
    return {"values": 0, "size_bytes": 0, "max_bytes": 0} if size is None else size()


def _forget_flights() -> None:
    # In a forked child no greenlet goes on that loads, or that holds the lock.
    for cache in list(_caches):
        if cache._lock.locked():  # a thread of the parent was changing the entries
            cache._entries = Entries(cache.max_bytes, cache._statistics)
        cache._lock = threading.Lock()
        cache._flights, cache._invalid = {}, {}


os.register_at_fork(after_in_child=_forget_flights)

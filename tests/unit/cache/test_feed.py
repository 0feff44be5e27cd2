"""greenline.cache.feed: what one process writes, all see at their next look."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import greenline.cache.feed
from greenline.cache import Cache
from greenline.cache.feed import ENTRIES, FIRST, MAX_TAG_BYTES, Feed, Invalidated
from greenline.errors import ConfigError, StoreDown
from tests.helpers.clock import Clock
from tests.helpers.support import CHECKOUT, wait_until

MB = 1 << 20


class Host:
    """Processes with a cache each, which is full."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, Clock()
        self.feeds: list[Feed] = []
        self.writer = self.feed()

    def feed(self) -> Feed:
        self.feeds.append(Feed("db", 2.0, self.folder))
        return self.feeds[-1]

    def cache(self) -> Cache:
        cache = Cache(MB, 60, feed=self.feed(), clock=self.clock)
        for number in range(3):
            cache.get_or_load(f"book {number}", lambda: b"x", tags=["books"])
        return cache


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    for feed in host.feeds:
        feed.close()


class Hasty(Feed):
    """A feed that is read by another thread as soon as it has a cache."""

    def attach(self, cache: Invalidated) -> None:
        cache.invalidate("k", tag="t")
        cache.clear()
        super().attach(cache)


def test_a_cache_may_be_invalidated_as_soon_as_it_is_attached(tmp_path: Path) -> None:
    feed = Hasty("db", 2.0, tmp_path)
    cache = Cache(MB, 60, feed=feed, shared_loads="test of a feed")
    assert cache.stats()["invalidations"] == 2
    feed.close()
    assert cache._shared is not None
    cache._shared.close()


def loads(cache: Cache, number: int) -> bool:
    """Return whether a look at a book loads it."""
    before, found = cache.stats()["loads"], cache.get(f"book {number}")
    cache.get_or_load(f"book {number}", lambda: b"new", tags=["books"])
    has_loaded = cache.stats()["loads"] > before
    assert (found is None) == has_loaded
    return has_loaded


def test_all_see_what_is_written(host: Host) -> None:
    """By key or tag, and no other values."""
    one, other = host.cache(), host.cache()
    host.writer.publish(["book 1", "none has this"])
    for cache in (one, other):
        assert [loads(cache, number) for number in range(3)] == [False, True, False]
    host.writer.publish(["books"])
    assert [loads(one, number) for number in range(3)] == [True] * 3


@pytest.mark.parametrize("tag", [None, "", "é" * MAX_TAG_BYTES], ids=["all", "empty", "long"])
def test_everything_is_invalid_where_nothing_smaller_is_known(host: Host, tag: str | None) -> None:
    """Announcements were lost, or have a tag that does not fit."""
    cache = host.cache()
    if tag is None:
        host.writer.publish_everything()
    else:
        host.writer.publish([tag])
    assert [loads(cache, number) for number in range(3)] == [True] * 3


def test_a_reader_that_was_overtaken_begins_anew(host: Host) -> None:
    """The ring has written over what it has not read."""
    cache = host.cache()
    host.writer.publish(f"t{number}" for number in range(ENTRIES // 2))
    assert not loads(cache, 1)
    host.writer.publish(f"t{number}" for number in range(ENTRIES // 2 + 1))
    assert loads(cache, 1)
    for number in range(5 * ENTRIES):
        host.writer.publish([f"t{number}"])
        if number % 100 == 0:
            assert not loads(cache, 1)


def test_a_damaged_entry_invalidates_everything(host: Host) -> None:
    """As one that is overwritten while it is read."""
    cache = host.cache()
    host.writer.publish(["unknown"])
    host.writer._memory[FIRST + 20] ^= 1
    assert loads(cache, 1)


def test_what_is_written_during_a_load_is_not_kept(host: Host) -> None:
    """Although the invalidation is read only when the load has ended."""
    cache = host.cache()

    def load() -> bytes:
        host.writer.publish(["new"])
        return b"old"

    assert cache.get_or_load("k", load, tags=["new"]) == b"old"
    assert cache.get_or_load("k", lambda: b"new", tags=["new"]) == b"new"


def test_without_a_listener_a_value_is_used_for_a_while_only(host: Host) -> None:
    """From the beginning of its load; with one, as long as it has proved that it hears."""
    cache = host.cache()
    host.clock.now += 1.9
    assert not loads(cache, 1)
    host.clock.now += 0.1
    assert loads(cache, 1)
    for _ in range(10):
        host.clock.now += 1.5
        host.writer.confirm(host.clock.now - 0.4)
        assert not loads(cache, 1)
    host.clock.now += 1.6
    assert loads(cache, 1)


@pytest.mark.parametrize("how", ["interrupt", "lead"])
def test_while_no_process_reads_a_value_is_used_for_an_instant(
    host: Host, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process knows it: its connection is lost, or the leader was killed. It does not go on."""
    monkeypatch.setattr(greenline.cache.feed, "monotonic", host.clock)
    cache = host.cache()
    host.writer.confirm(host.clock.now)
    host.clock.now += 0.04
    getattr(host.writer, how)()
    assert not loads(cache, 1)
    host.clock.now += 0.02
    assert loads(cache, 1)
    host.clock.now += 9.9
    host.writer.interrupt()  # nor does it begin anew
    assert loads(cache, 1)
    host.clock.now += 0.1
    assert not loads(cache, 1)
    host.clock.now += 2.0
    assert loads(cache, 1)


def test_where_announcements_never_arrive_only_time_counts(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the beginning of the load, also where one process after another tries to listen."""
    monkeypatch.setattr(greenline.cache.feed, "monotonic", host.clock)
    cache = host.cache()
    host.writer.confirm(host.clock.now)
    host.writer.interrupt()
    host.writer.resume()
    assert host.writer.lead()
    host.clock.now += 1.9
    assert not loads(cache, 1)
    host.clock.now += 0.1
    assert loads(cache, 1)


def test_an_interrupted_feed_makes_of_a_load_no_other_ones(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who ask wait for it, for as long as a value may be old."""
    monkeypatch.setattr(greenline.cache.feed, "monotonic", host.clock)
    cache = Cache(MB, 60, feed=host.feed(), clock=host.clock)
    host.writer.confirm(host.clock.now)
    host.writer.interrupt()
    waiting = []

    def slow() -> str:
        host.clock.now += 1.0
        waiting.append(threading.Thread(target=cache.get_or_load, args=("k", pytest.fail)))
        waiting[0].start()
        wait_until(lambda: cache.stats()["waits"] == 1, "it to wait")
        return "slow"

    assert cache.get_or_load("k", slow) == "slow"
    waiting[0].join()
    assert cache.stats()["loads"] == 1


def test_who_asks_waits_for_no_load_that_is_too_old(host: Host) -> None:
    """Its value would be."""
    cache, calls = Cache(MB, 60, feed=host.feed(), clock=host.clock), []

    def slow() -> str:
        calls.append("slow")
        host.clock.now += 2.0
        # In the middle of the load another one asks.
        assert cache.get_or_load("k", lambda: "quick") == "quick"
        return "slow"

    assert cache.get_or_load("k", slow) == "slow"
    assert cache.get_or_load("k", lambda: pytest.fail("it was kept")) == "quick"


def test_a_load_that_was_replaced_is_not_kept(host: Host) -> None:
    """Nothing invalidates it any more: also where the newer value has gone by then."""
    feed = host.feed()
    cache = Cache(MB, 600, feed=feed, clock=host.clock)

    def slow() -> str:
        host.clock.now += 2.0
        cache.get_or_load("k", lambda: "quick", tags=["t"])
        host.writer.publish(["t"])
        feed.pull()
        return "old"

    assert cache.get_or_load("k", slow, tags=["t"]) == "old"
    host.writer.confirm(host.clock.now)
    assert cache.get_or_load("k", lambda: "new", tags=["t"]) == "new"


@pytest.mark.parametrize("how", ["invalidated", "too old", "older than it may be"])
def test_an_error_is_replaced_by_nothing_that_was_invalidated_meanwhile(
    host: Host, how: str
) -> None:
    """The value is looked at again when the load has failed."""
    cache = Cache(MB, 10, stale_if_error_s=20, feed=host.feed(), clock=host.clock)
    host.writer.confirm(host.clock.now)
    cache.get_or_load("k", lambda: "old", tags=["t"])
    host.clock.now += 11.0

    def fail() -> str:
        if how == "invalidated":
            host.writer.publish(["t"])
        elif how == "older than it may be":
            host.clock.now += 20.0
            host.writer.confirm(host.clock.now)
        else:
            host.clock.now += 3.0
        raise StoreDown

    host.writer.confirm(host.clock.now)
    with pytest.raises(StoreDown):
        cache.get_or_load("k", fail, tags=["t"])


def test_what_is_confirmed_after_a_look_counts_at_the_next_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may write and confirm between the two."""
    cache = host.cache()
    host.clock.now += 10.0
    look = Feed._tags

    def interrupted(self: Feed, written: int) -> list[str] | None:
        found = look(self, written)
        host.writer.publish(["book 1"])
        host.writer.confirm(host.clock.now)
        return found

    host.writer.publish(["another"])
    monkeypatch.setattr(Feed, "_tags", interrupted)
    assert loads(cache, 1)


def test_a_time_of_an_earlier_boot_confirms_nothing(host: Host) -> None:
    """The file may be older than the machine's clock; a new leader begins anew."""
    cache = host.cache()
    host.writer.confirm(host.clock.now + 1_000_000)
    host.clock.now += 2.0
    assert loads(cache, 1)
    assert host.writer.lead()
    assert host.writer._times[3] < 0


@pytest.mark.parametrize("max_stale_s", [0, -1, float("inf"), float("nan")])
def test_a_bad_time_is_refused(tmp_path: Path, max_stale_s: float) -> None:
    """It is named."""
    with pytest.raises(ValueError, match=f"max_stale_s is {max_stale_s}"):
        Feed("db", max_stale_s, tmp_path)


def test_one_process_leads_until_it_ends(host: Host) -> None:
    """However it ends, and although a child that it has forked lives longer."""
    program = f"""
import os, sys, time
from pathlib import Path
from greenline.cache.feed import Feed
feed = Feed("db", 2.0, Path({str(host.folder)!r}))
assert feed.lead() and feed.lead()
if os.fork() == 0:
    print("leads", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"leads\n"
        assert not host.writer.lead()
        process.kill()
        wait_until(host.writer.lead, "the lock")
        assert not host.feed().lead()
        os.killpg(process.pid, 9)
    host.writer.close()
    assert host.feed().lead()


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda path: path.write_bytes(b"x"), "it is damaged"),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), "it is damaged"),
        (lambda path: path.chmod(0o644), "it may be used by others"),
    ],
    ids=["short", "empty", "mode"],
)
def test_a_file_that_is_not_ours_is_refused(
    host: Host, spoil: Callable[[Path], object], error: str
) -> None:
    """It is named, and left as it is."""
    (path,) = host.folder.iterdir()
    path.write_bytes(path.read_bytes())
    host.writer.close()
    spoil(path)
    with pytest.raises(ConfigError, match=error) as caught:
        host.feed()
    assert str(path) in str(caught.value)

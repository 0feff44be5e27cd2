"""Several batches at once, which end in any order."""

import random
from threading import Event, Lock

import pytest

from app.documents.batches import MAX_BYTES, Batch, DocumentBatches


def test_batches_are_counted_in_their_order_whichever_ends_first() -> None:
    """What a checkpoint says is true of everything before it."""
    seen: list[bytes | None] = []
    batches = DocumentBatches(4, Event(), lambda batch: seen.append(batch.last))
    first_may_end = Event()
    batches.submit(Batch(b"0"), 1, lambda _: first_may_end.wait(30) and None)
    ended = [Event() for _ in range(3)]
    for number, event in enumerate(ended, start=1):
        batches.submit(Batch(str(number).encode()), 1, lambda _, event=event: event.set())
    for event in ended:
        assert event.wait(30)
    assert seen == []
    first_may_end.set()
    batches.finish()
    assert seen == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("size_bytes", "most"), [(1, 3), (MAX_BYTES // 2, 2), (MAX_BYTES * 2, 1)], ids=str
)
def test_no_more_run_than_may(size_bytes: int, most: int) -> None:
    """By number, and by size: a batch that is too large for the rest is written alone."""
    lock, running, seen = Lock(), 0, []
    chance = random.Random(3)
    pauses = [chance.random() / 50 for _ in range(12)]

    def work(_: Batch) -> None:
        nonlocal running
        with lock:
            running += 1
            seen.append(running)
        Event().wait(pauses[len(seen) - 1])
        with lock:
            running -= 1

    batches = DocumentBatches(3, Event(), lambda _: None)
    for _ in pauses:
        batches.submit(Batch(), size_bytes, work)
    batches.finish()
    assert len(seen) == len(pauses)
    assert max(seen) == most


def test_the_first_error_ends_it_and_what_follows_is_not_counted() -> None:
    """The batches that run meanwhile are finished; the checkpoint stays before the error."""
    stopping, seen = Event(), []
    batches = DocumentBatches(2, stopping, lambda batch: seen.append(batch.last))

    def fail(_: Batch) -> None:
        raise ValueError("this one")

    batches.submit(Batch(b"0"), 1, lambda _: None)
    batches.submit(Batch(b"1"), 1, fail)
    assert stopping.wait(30)
    batches.submit(Batch(b"2"), 1, lambda _: None)
    with pytest.raises(ValueError, match="this one"):
        batches.finish()
    assert seen == [b"0"]

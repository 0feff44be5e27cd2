"""greenline.worker.loading: few collections while an application is loaded."""

import gc
import os
from collections.abc import Iterator

import pytest

from greenline.worker.loading import OBJECTS, few_collections


def collections() -> int:
    """Return how many there were, of all generations."""
    return sum(each["collections"] for each in gc.get_stats())


@pytest.fixture(autouse=True)
def threshold() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_few_begin_until_the_end(threshold: tuple[int, int, int]) -> None:
    """Not even where the loading fails; the application's own calls stay as they are."""
    before = collections()
    with pytest.raises(ImportError), few_collections():
        kept = [[number] for number in range(10 * threshold[0])]
        assert collections() <= before + 1
        assert (len(kept), gc.isenabled()) == (10 * threshold[0], True)
        raise ImportError
    assert gc.get_threshold() == threshold


def test_a_child_that_is_forked_meanwhile_has_collections(
    threshold: tuple[int, int, int],
) -> None:
    with few_collections():
        child = os.fork()
        if child == 0:
            os._exit(gc.get_threshold() != threshold)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("own", [0, 70_000])
def test_an_application_may_set_its_own(threshold: tuple[int, int, int], own: int) -> None:
    with few_collections():
        gc.set_threshold(own, 20, 20)
    assert gc.get_threshold()[0] == own


def test_garbage_is_collected_all_the_same(threshold: tuple[int, int, int]) -> None:
    with few_collections():
        before = collections()
        for _ in range(3 * OBJECTS):
            cycle: list[object] = []
            cycle.append(cycle)
        assert collections() >= before + 2

"""greenline.worker.loading: no collection while an application is loaded."""

import gc
import os
from collections.abc import Iterator

import pytest

from greenline.worker.loading import without_collections


@pytest.fixture(autouse=True)
def threshold() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_none_begins_until_the_end(threshold: tuple[int, int, int]) -> None:
    """Not even where the loading fails; the application's own calls stay as they are."""
    before = gc.get_stats()[0]["collections"]
    with pytest.raises(ImportError), without_collections():
        kept = [[number] for number in range(10 * threshold[0])]
        assert (len(kept), gc.get_stats()[0]["collections"], gc.isenabled()) == (
            10 * threshold[0], before, True,
        )  # fmt: skip
        raise ImportError
    assert gc.get_threshold() == threshold


def test_a_child_that_is_forked_meanwhile_has_collections(
    threshold: tuple[int, int, int],
) -> None:
    with without_collections():
        child = os.fork()
        if child == 0:
            os._exit(gc.get_threshold() != threshold)
        assert os.waitpid(child, 0)[1] == 0


def test_an_application_may_set_its_own(threshold: tuple[int, int, int]) -> None:
    with without_collections():
        gc.set_threshold(50_000, 20, 20)
    assert gc.get_threshold()[0] == 50_000

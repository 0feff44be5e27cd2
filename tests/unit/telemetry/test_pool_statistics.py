"""greenline.telemetry.pool_statistics: what is counted since when."""

import pytest

from greenline.telemetry.pool_statistics import PoolStatistics


def test_pop_begins_anew() -> None:
    """get() counts since the last pop(), which returns the same and begins at 0."""
    statistics = PoolStatistics()
    statistics.requests_num += 3
    statistics.usage_s += 1.2345
    assert (statistics.get()["requests_num"], statistics.get()["usage_ms"]) == (3, 1234)
    assert statistics.pop()["requests_num"] == 3
    assert set(statistics.get().values()) == {0}
    statistics.requests_num += 1
    assert statistics.get()["requests_num"] == 1


def test_no_part_of_a_time_is_lost_between_two_pops() -> None:
    """Parts of a millisecond add up, however often the counts are popped."""
    statistics = PoolStatistics()
    popped = 0
    for _ in range(10):
        statistics.usage_s += 0.0005
        popped += statistics.pop()["usage_ms"]
    assert popped == 5


def test_each_reader_sees_each_count_once() -> None:
    """A reader returns the growth since its own last call, whatever others have read or popped."""
    statistics = PoolStatistics()
    statistics.requests_num += 2
    read = statistics.reader()
    assert read()["requests_num"] == 2
    statistics.requests_num += 3
    statistics.pop()
    statistics.reader()()
    assert read()["requests_num"] == 3
    assert read()["requests_num"] == 0


def test_a_wait_and_a_connect_count_also_when_they_fail() -> None:
    """A wait that is interrupted is time spent waiting; a failed connect is an error."""
    statistics = PoolStatistics()
    with pytest.raises(TimeoutError), statistics.queued():
        raise TimeoutError
    with statistics.connecting():
        pass
    with pytest.raises(OSError, match="refused"), statistics.connecting():
        raise OSError("refused")
    counts = statistics.get()
    assert (counts["requests_queued"], counts["connections_num"]) == (1, 2)
    assert counts["connections_errors"] == 1

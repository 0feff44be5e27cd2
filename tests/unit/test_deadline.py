"""greenline.deadline: one limit, what remains is passed down."""

import gevent
import pytest

from greenline import deadline
from greenline.errors import DeadlineExceeded


def test_without_a_limit_nothing_remains_to_be_counted() -> None:
    """A script or a test has no deadline; what it asks for is what it gets."""
    assert deadline.remaining() is None
    assert deadline.remaining(3) == 3


def test_what_remains_is_the_smaller_of_both() -> None:
    """An operation's own limit holds inside the request's, and the other way round."""
    with deadline.limit(10):
        assert 9 < deadline.remaining() <= 10
        assert deadline.remaining(3) == 3
        assert 9 < deadline.remaining(30) <= 10
    assert deadline.remaining() is None


def test_an_inner_limit_cannot_outlive_the_outer_one() -> None:
    """Asking for more time inside a limit does not give more."""
    with deadline.limit(1), deadline.limit(60):
        assert deadline.remaining() <= 1


def test_a_block_that_does_not_give_up_is_interrupted() -> None:
    """The wait ends with DeadlineExceeded shortly after the limit."""
    with gevent.Timeout(5), pytest.raises(DeadlineExceeded), deadline.limit(0.05):
        gevent.sleep(60)


def test_the_limit_is_gone_after_the_block() -> None:
    """A finished block leaves no timer that could interrupt what comes next."""
    with deadline.limit(0.01):
        pass
    gevent.sleep(deadline.GRACE_S + 0.1)


def test_each_greenlet_has_its_own() -> None:
    """A deadline set in one greenlet does not reach another that runs meanwhile."""
    seen: list[float | None] = []

    def limited() -> None:
        with deadline.limit(10):
            gevent.sleep(0)

    def free() -> None:
        seen.append(deadline.remaining())

    gevent.joinall([gevent.spawn(limited), gevent.spawn(free)], timeout=5, raise_error=True)
    assert seen == [None]

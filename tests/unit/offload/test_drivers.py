"""Methods of drivers run in native threads, whatever class of the application uses them."""

from _queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

import gevent
import pytest
from gevent.monkey import get_original

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.offload import drivers

sleep = get_original("time", "sleep")
get_ident = get_original("_thread", "get_ident")


class Client:
    """The class of a driver, whose calls block."""

    closed = False

    def perform(self, blocks_s: float = 0.3, *, timeout: float = 1) -> int:
        """Perform."""
        sleep(blocks_s)
        return int(get_ident())

    def poll(self, timeout: float = 1) -> int:
        """Poll."""
        sleep(timeout)
        return int(get_ident())

    def close(self) -> None:
        sleep(0.1)
        self.closed = True


def replaced(make: Any, kind: Any = None) -> Any:
    """Return the class of a driver, the methods of which are replaced."""
    module: Any = ModuleType("driver")
    module.Client = kind or type("Client", (Client,), {})
    methods = ("perform", "poll", "close", "get", "in_another_version")
    drivers._replace({"Client": methods, "Other": ()}, make, module)
    return module.Client


@pytest.mark.parametrize("make", [drivers._in_any_thread, drivers._in_own_thread])
def test_calls_run_side_by_side(make: Any) -> None:
    """Also those of a subclass, and of a class in C."""
    kind = replaced(make)

    class Mine(kind):  # type: ignore[misc]
        """That of an application."""

    with gevent.Timeout(2):
        jobs = [gevent.spawn(Mine().perform) for _ in range(10)]
        gevent.joinall(jobs, raise_error=True)
    assert get_ident() not in {job.value for job in jobs}
    assert kind.perform.__doc__ == "Perform."
    in_c = replaced(make, SimpleQueue)
    assert in_c.__name__ == "SimpleQueue"
    assert isinstance(in_c(), SimpleQueue)
    with gevent.Timeout(2):
        jobs = [gevent.spawn(in_c().get, timeout=0.3) for _ in range(10)]
        gevent.joinall(jobs)
    assert {type(job.exception) for job in jobs} == {Empty}


def test_calls_of_one_object_run_in_its_thread() -> None:
    """Its library allows no other thread meanwhile."""
    client = replaced(drivers._in_own_thread)()
    jobs = [gevent.spawn(client.perform, 0.02) for _ in range(3)]
    gevent.joinall(jobs, raise_error=True)
    assert len({job.value for job in jobs}) == 1
    with pytest.raises(DeadlineExceeded), deadline.limit(0.05):
        try:
            client.perform(1.1)
        finally:
            client.close()
    assert client.closed


def test_a_call_that_waits_for_nothing_needs_no_thread() -> None:
    """poll(0) is called after each message; another method may have a 0 of another meaning."""
    client = replaced(drivers._in_any_thread)()
    assert client.poll(0) == client.poll(timeout=0) == get_ident()
    assert get_ident() not in (client.poll(0.01), client.poll(timeout=0.01), client.perform(0))

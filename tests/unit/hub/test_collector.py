"""greenline.hub.collector: nothing is collected in the hub while one that was interrupted waits."""

import gc
from collections.abc import Iterator
from time import sleep

import gevent
import pytest

from greenline.hub import collector
from greenline.hub.handlers import Handlers


@pytest.fixture
def one_waits() -> Iterator[None]:
    """One that was interrupted."""
    collector.waiting.add("one")
    collector.suspend()
    yield
    collector.waiting.clear()
    collector.resume()
    assert gc.isenabled()


@pytest.mark.usefixtures("one_waits")
def test_a_request_collects_and_the_hub_does_not() -> None:
    handlers, in_request, in_hub, at_its_end = Handlers(), list[bool](), list[bool](), list[bool]()

    def look() -> None:
        in_hub.append(gc.isenabled())

    def work() -> None:
        in_request.append(gc.isenabled())
        gevent.get_hub().loop.run_callback(look)
        sleep(0.001)
        in_request.append(gc.isenabled())

    def client() -> None:
        handlers.run(work)
        at_its_end.append(gc.isenabled())

    gevent.spawn(client).join()
    assert in_request == [True, True]
    assert in_hub == at_its_end == [False]
    handlers.retire_idle(1)
    gevent.sleep(0)


def test_it_goes_on_when_none_waits() -> None:
    collector.suspend()
    assert gc.isenabled()


@pytest.mark.usefixtures("one_waits")
def test_a_collector_that_the_application_has_disabled_stays_so() -> None:
    collector.resume()
    gc.disable()
    try:
        collector.suspend()
        collector.resume()
        assert not gc.isenabled()
    finally:
        gc.enable()

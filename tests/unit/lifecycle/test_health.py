"""Health and resources: ask side by side, remember, close in order."""

import time
from contextlib import suppress

import gevent
import pytest
from gevent.event import Event

from greenline.errors import StoreDown
from greenline.lifecycle import health
from greenline.lifecycle.health import Health
from greenline.lifecycle.resources import Resources
from tests.helpers.clock import Clock


def broken() -> None:
    raise StoreDown("the cable is cut")


def test_a_report_names_what_fails_and_what_does_not() -> None:
    """One failing check does not hide the others."""
    checks = Health()
    checks.add("good", lambda: None)
    checks.add("bad", broken)
    report = checks.report()
    assert report.checks == {"good": None, "bad": "the cable is cut"}
    assert not report.ready


def test_an_answer_is_remembered_for_a_second_and_no_longer() -> None:
    """The dependency is asked again only when the second is over."""
    clock, asked = Clock(), []
    checks = Health(clock)
    checks.add("counted", lambda: asked.append(1))
    checks.report()
    clock.now += 0.99
    checks.report()
    assert len(asked) == 1
    clock.now += 0.02
    checks.report()
    assert len(asked) == 2


def test_a_burst_of_asks_shares_one_answer() -> None:
    """A caller waits for the answer that is on its way."""
    go, asked = Event(), []

    def slow() -> None:
        asked.append(1)
        go.wait()

    checks = Health()
    checks.add("slow", slow)
    askers = [gevent.spawn(checks.report) for _ in range(50)]
    gevent.sleep(0)
    go.set()
    gevent.joinall(askers, timeout=40, raise_error=True)
    assert all(asker.value.ready for asker in askers)
    assert len(asked) == 1


def test_checks_that_hang_fail_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten hanging checks take the time of one, and another that answers stays good."""
    monkeypatch.setattr(health, "CHECK_TIMEOUT_S", 0.2)
    checks = Health()
    for number in range(10):
        checks.add(f"hung {number}", Event().wait)
    checks.add("good", lambda: None)
    with gevent.Timeout(3):
        report = checks.report()
    assert sum(problem is not None for problem in report.checks.values()) == 10
    assert report.checks["good"] is None


def test_a_check_that_ignores_its_limit_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that swallows its own deadline still cannot hold up the report."""
    monkeypatch.setattr(health, "CHECK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(health, "TOTAL_TIMEOUT_S", 0.6)

    def stubborn() -> None:
        for _ in range(6):
            with suppress(BaseException):
                Event().wait()

    checks = Health()
    checks.add("stubborn", stubborn)
    with gevent.Timeout(3):
        assert checks.report().checks == {"stubborn": "no answer within 0.6 s"}


def test_a_computation_just_before_takes_no_time_of_the_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another handler has used the processor since the loop's last round: no check has failed."""
    monkeypatch.setattr(health, "TOTAL_TIMEOUT_S", 3.0)
    checks = Health()
    checks.add("short", lambda: gevent.sleep(0.05))
    gevent.sleep(0.001)  # a timer's callback, in which the loop does not look at the clock again
    until = time.monotonic() + 3.5
    while time.monotonic() < until:
        pass
    assert checks.report().ready


def test_a_check_that_is_itself_broken_is_not_healthy() -> None:
    """A programming error in a check reads as failed, without its text."""
    checks = Health()
    checks.add("buggy", lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    report = checks.report()
    assert not report.ready
    assert "division" not in str(report.checks)


def test_resources_close_in_reverse_order_even_when_one_fails() -> None:
    """What was opened last may use what was opened first."""
    closed: list[str] = []
    resources = Resources()
    resources.add("first", close=lambda: closed.append("first"))
    resources.add("second", close=broken)
    resources.add("third", close=lambda: closed.append("third"))
    resources.close()
    assert closed == ["third", "first"]
    resources.close()
    assert closed == ["third", "first"]

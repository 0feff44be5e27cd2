"""What a state means, in sentences."""

import msgspec
import pytest

from greenline.ops.findings import findings, slots_text
from greenline.ops.states import (
    BlockedState,
    PoolState,
    RouteState,
    SlotsState,
    WorkerSlots,
)
from greenline.telemetry.reports import HubState
from tests.helpers.states import WELL, WORKER

STACK = [("/srv/shop/views.py", 7, "report")]
ROUTE = RouteState("/orders", 10.0, 0.3, 0.1, 0.2, {"postgres": 0.08, "application": 0.02})


def worker(**changes: object) -> dict[str, object]:
    return {"workers": [msgspec.structs.replace(WORKER, **changes)]}


def test_a_service_that_does_its_work_has_none() -> None:
    """Nor has one whose connections are all in use, while no request waits for one."""
    assert findings(WELL) == []


@pytest.mark.parametrize(
    ("changes", "begin"),
    [
        ({"workers": []}, "No worker runs"),
        ({"blocked": [BlockedState(11, 3.21, "views.report", HubState([], STACK))]},
         "The hub of worker 11 has been blocked for 3.2 s in views.report: no other request"),
        ({"blocked": [BlockedState(11, 3.21, "", None)]},
         "The hub of worker 11 has not run for 3.2 s: it waits for a processor, or code"),
        ({"rates": {**WELL.rates, "refused": 7.0, "failed": 7.0}},
         "7.0 requests a second are refused with 503: more come than are answered. More"),
        ({"rates": {**WELL.rates, "refused": 7.0, "failed": 7.0}, **worker(max_waiting=5)},
         "7.0 requests a second are refused with 503: more come than are answered. "
         "GREENLINE_MAX_WAITING lets 5 wait in a worker."),
        ({"rates": {**WELL.rates, "failed": 2.5}}, "2.5 requests a second fail with 5xx: the log"),
        ({"rates": {**WELL.rates, "failed": 2.5}, "routes": [ROUTE]},
         "2.5 requests a second fail with 5xx, most of /orders: the log"),
        (worker(connections=950), "950 of 1000 connections of clients are in use: raise"),
        ({"pools": {"postgres": PoolState(4, 4, 0, 9)}},
         "9 requests wait for a connection of 'postgres': the database is the limit"),
        ({"pools": {"postgres": PoolState(4, 3, 0, 9)},
          **worker(pools={"postgres": PoolState(2, 2, 0, 9)})},
         "9 requests wait for a connection of 'postgres', 9 of them in worker 11, which has 2 of "
         "2: the database is the limit"),
        ({"pools": {"postgres": PoolState(4, 4, 0, 9)}, "routes": [ROUTE],
          "slots": {"postgres": SlotsState(40, 5, 0, 0)}},
         "9 requests wait for a connection of 'postgres': the database is the limit, or "
         "connections are held for longer than their statements, or the pool is too small. 35 "
         "slots of the host are free: a larger pool may help. Most of the time goes into "
         "/orders, there into 'postgres'."),
        ({"slots": {"postgres": SlotsState(40, 40, 0, 2)}},
         "All 40 slots of the host for 'postgres' are held, and 2 processes wait for one (2 other "
         "processes of the host): see the plan"),
        ({"slots": {"postgres": SlotsState(40, 40, 0, 2)},
          **worker(slots={"postgres": WorkerSlots(9, True)})},
         "All 40 slots of the host for 'postgres' are held, and 2 processes wait for one (worker "
         "11, 1 other process of the host): see the plan"),
        (worker(waiting=5, in_progress=16),
         "5 requests wait for their turn, 5 of them in worker 11, which works on 16 of 16."),
        (worker(cpu=0.97), "1 of 1 workers use a whole processor: more workers"),
        (worker(queued=0.6), "Worker 11 waits for a processor for 60% of the time: fewer workers"),
        (worker(lag_s=0.25), "The hub of worker 11 is 250 ms late."),
    ],
    ids=["no worker", "blocked", "blocked without a stack", "refused", "a short queue", "failed",
         "a route fails", "connections", "a pool", "a pool of a worker", "a small pool", "slots",
         "slots for a worker", "turns", "processor", "neighbours", "late"],
)  # fmt: skip
def test_what_is_wrong_or_limits_is_named(changes: dict[str, object], begin: str) -> None:
    """In one sentence for each, and the others stay away."""
    (found,) = findings(msgspec.structs.replace(WELL, **changes))
    assert found.startswith(begin)
    assert found.endswith(".")


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (SlotsState(8, 0, 0, 0), "0 of 8 slots of the host are held"),
        (SlotsState(8, 3, 0, 0), "3 of 8 slots of the host are held: 3 by worker 11"),
        (SlotsState(8, 8, 1, 2),
         "8 of 8 slots of the host are held: 3 by worker 11, 1 by killed processes, 4 by other "
         "processes of the host; waiting for one: worker 12, 1 other process of the host"),
    ],
    ids=["none", "one worker", "all kinds"],
)  # fmt: skip
def test_the_processes_that_hold_slots_and_wait_are_named(slots: SlotsState, expected: str) -> None:
    """Workers by their process ids, orphans, and the rest of the host."""
    workers = [
        msgspec.structs.replace(WORKER, pid=pid, slots={"postgres": WorkerSlots(held, is_waiting)})
        for pid, held, is_waiting in ((11, min(slots.held, 3), False), (12, 0, slots.wanted > 0))
    ]
    assert slots_text("postgres", slots, workers) == expected


def test_the_gravest_comes_first() -> None:
    """A blocked hub makes requests wait: their wait is named after it."""
    both = {
        "blocked": [BlockedState(11, 3.0, "views.report", None)],
        "workers": [msgspec.structs.replace(WORKER, waiting=5, is_blocked=True, lag_s=3.0)],
    }
    first, second = findings(msgspec.structs.replace(WELL, **both))
    assert first.startswith("The hub of worker 11 has been blocked")
    assert second.startswith("5 requests wait for their turn")

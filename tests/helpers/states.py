"""The state of a service that does its work, for tests of what is made of it."""

from greenline.ops.states import PoolState, SlotsState, State, WorkerState

WORKER = WorkerState(
    pid=11, lag_s=0.001, is_blocked=False, connections=10, connections_max=1000, in_progress=4,
    waiting=0, max_waiting=0, limit=16, memory_bytes=50_000_000, cpu=0.2, queued=0.01, pools={},
    slots={},
)  # fmt: skip
WELL = State(
    time=0.0, version="1", findings=[], rate=100.0,
    rates={"refused": 0.0, "failed": 0.0, "deadlines": 0.0, "disconnected": 0.0},
    p50_s=0.01, p99_s=0.1, workers=[WORKER], pools={"postgres": PoolState(4, 4, 0, 0)},
    slots={"postgres": SlotsState(40, 40, 0, 0)}, routes=[], blocked=[], requests=[], blocks=[],
    plans={},
)  # fmt: skip

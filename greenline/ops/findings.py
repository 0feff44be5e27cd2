"""Say in sentences what limits the workers, or is wrong, and what to do."""

from collections.abc import Iterator, Sequence

from greenline.ops.states import SlotsState, State, WorkerSlots, WorkerState

FULL = 0.9  # of the connections of clients
BUSY = 0.9  # of a processor
QUEUED = 0.25  # of the time that a worker waits for a processor
LATE_S = 0.1
SOME = 0.05  # a second
NO_SLOTS = WorkerSlots(0, False)


def findings(state: State) -> list[str]:
    """Return a sentence for each finding, the gravest first; none if all is well."""
    return [*_hubs(state), *_refusals(state), *_databases(state), *_workers(state)]


def _hubs(state: State) -> Iterator[str]:
    for each in state.blocked:
        name, seconds = f"worker {each.pid}", f"{each.seconds:.1f} s"
        if each.function:
            yield (
                f"The hub of {name} has been blocked for {seconds} in {each.function}: no other "
                "request goes on there. If it waits below Python, let it run in a thread "
                "(GREENLINE_OFFLOAD); if it computes, in another process."
            )
        else:
            yield (
                f"The hub of {name} has not run for {seconds}: it waits for a processor, or code "
                "below Python blocks it."
            )


def _refusals(state: State) -> Iterator[str]:
    if not state.workers:
        yield "No worker runs: see the error log."
    refused = state.rates["refused"]
    if refused >= SOME:
        lengths = [each.max_waiting for each in state.workers if each.max_waiting]
        queue = f" GREENLINE_MAX_WAITING lets {max(lengths)} wait in a worker." if lengths else ""
        yield (
            f"{refused:.1f} requests a second are refused with 503: more come than are "
            f"answered.{queue}{_most(state)} More workers or hosts, or less work in each request."
        )
    if (failed := state.rates["failed"] - refused) >= SOME:
        worst = max(state.routes, key=lambda each: each.failed * each.rate, default=None)
        where = f", most of {worst.route}" if worst is not None and worst.failed else ""
        yield f"{failed:.1f} requests a second fail with 5xx{where}: the log has the reason."
    connections = sum(each.connections for each in state.workers)
    connections_max = sum(each.connections_max for each in state.workers)
    if connections > FULL * connections_max:
        yield (
            f"{connections} of {connections_max} connections of clients are in use: "
            "raise worker_connections, or have more workers."
        )


def _databases(state: State) -> Iterator[str]:
    for name, pool in state.pools.items():
        if not pool.waiting:
            continue
        worker = max(state.workers, key=lambda each: _waits_in(each, name), default=None)
        where = ""
        if worker is not None and _waits_in(worker, name):
            own = worker.pools[name]
            of = f" of {own.max_size}" if own.max_size else ""
            where = f", {own.waiting} of them in worker {worker.pid}, which has {own.active}{of}"
        slots = state.slots.get(name)
        free = 0 if slots is None else slots.capacity - slots.held
        larger = (
            f" {free} slots of the host are free: a larger pool may help."
            if free > pool.max_size
            else ""
        )
        yield (
            f"{pool.waiting} requests wait for a connection of '{name}'{where}: the database is "
            "the limit, or connections are held for longer than their statements, or the pool is "
            f"too small.{larger}{_most(state)}"
        )
    for name, slots in state.slots.items():
        if slots.wanted and slots.held >= slots.capacity:
            yield (
                f"All {slots.capacity} slots of the host for '{name}' are held, and "
                f"{slots.wanted} processes wait for one ({_waiters(name, slots, state.workers)}): "
                "see the plan of the connections."
            )


def _workers(state: State) -> Iterator[str]:
    waiting = sum(each.waiting for each in state.workers)
    busy = [each for each in state.workers if each.cpu >= BUSY]
    if waiting:
        worker = max(state.workers, key=lambda each: each.waiting)
        yield (
            f"{waiting} requests wait for their turn, {worker.waiting} of them in worker "
            f"{worker.pid}, which works on {worker.in_progress} of {worker.limit}."
            f"{_most(state)} `greenline stacks` shows what those wait for."
        )
    if busy:
        yield (
            f"{len(busy)} of {len(state.workers)} workers use a whole processor: more workers "
            f"where the host has idle processors, or less work in Python.{_most(state)}"
        )
    for each in state.workers:
        if each.queued >= QUEUED:
            yield (
                f"Worker {each.pid} waits for a processor for {each.queued:.0%} of the time: fewer "
                "workers or neighbours, or a higher limit."
            )
        elif each.lag_s >= LATE_S and not each.is_blocked and each not in busy:
            yield f"The hub of worker {each.pid} is {each.lag_s * 1000:.0f} ms late."


def slots_text(name: str, slots: SlotsState, workers: Sequence[WorkerState]) -> str:
    """
    Say which processes hold the slots of a host, and which wait for one.

    :param name: of the pool, str.
    :param slots: of the host.
    :param workers: those of the arbiter that is watched.
    """
    by = [(_has(each, name).held, f"worker {each.pid}") for each in workers]
    held = [f"{number} by {holder}" for number, holder in by if number]
    if slots.orphans:
        held.append(f"{slots.orphans} by killed processes")
    # The values of the workers are up to a tenth of a second apart.
    others = slots.held - slots.orphans - sum(number for number, _ in by)
    if others > 0:
        held.append(f"{others} by other processes of the host")
    text = f"{slots.held} of {slots.capacity} slots of the host are held"
    if held:
        text += f": {', '.join(held)}"
    return f"{text}; waiting for one: {_waiters(name, slots, workers)}" if slots.wanted else text


def _waiters(name: str, slots: SlotsState, workers: Sequence[WorkerState]) -> str:
    found = [f"worker {each.pid}" for each in workers if _has(each, name).is_waiting]
    others = slots.wanted - len(found)
    if others > 0:
        found.append(_processes(others))
    return ", ".join(found)


def _has(worker: WorkerState, name: str) -> WorkerSlots:
    return worker.slots.get(name, NO_SLOTS)


def _processes(number: int) -> str:
    return f"{number} other process{'es' * (number > 1)} of the host"


def _waits_in(worker: WorkerState, name: str) -> int:
    return worker.pools[name].waiting if name in worker.pools else 0


def _most(state: State) -> str:
    """Name the route that takes the most time, and the largest part of that but the queues."""
    route = max(state.routes, key=lambda each: each.rate * sum(each.parts_s.values()), default=None)
    parts_s = {} if route is None else {**route.parts_s, "queued": 0.0, "pool": 0.0}
    if route is None or not any(parts_s.values()) or route.route == "-":
        return ""
    part = max(parts_s, key=lambda name: parts_s[name])
    return f" Most of the time goes into {route.route}, there into '{part}'."

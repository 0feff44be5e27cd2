"""The state of all workers, as the page, ``top`` and ``/state`` have it."""

import msgspec

from greenline.telemetry.reports import BlockReport, HubState, RequestReport


class PoolState(msgspec.Struct):
    """
    A pool, of one worker or of all.

    :param max_size: connections that it may have, int; 0 if unknown.
    :param active: connections that are checked out, int.
    :param idle: int.
    :param waiting: greenlets that wait for a connection, int.
    """

    max_size: int
    active: int
    idle: int
    waiting: int


class WorkerSlots(msgspec.Struct):
    """
    What one worker has of the slots of the host for one server.

    :param held: slots that it holds, int.
    :param is_waiting: whether it waits for one, bool.
    """

    held: int
    is_waiting: bool


class WorkerState(msgspec.Struct):
    """
    One worker.

    :param pid: its process id, int.
    :param lag_s: how late its hub is, float seconds.
    :param is_blocked: whether its hub is blocked now, bool.
    :param connections: of clients, int.
    :param connections_max: ``worker_connections``, int.
    :param in_progress: requests, int.
    :param waiting: requests that wait for their turn, int.
    :param max_waiting: of those, as GREENLINE_MAX_WAITING has it, int; 0 if it is not set.
    :param limit: requests that may be in progress, int.
    :param memory_bytes: resident, int.
    :param cpu: the part of one processor that it uses, float.
    :param queued: the part of the time in which its hub waits for a processor, float.
    :param pools: by name.
    :param slots: what it has of the host's slots, by the pool's name.
    """

    pid: int
    lag_s: float
    is_blocked: bool
    connections: int
    connections_max: int
    in_progress: int
    waiting: int
    max_waiting: int
    limit: int
    memory_bytes: int
    cpu: float
    queued: float
    pools: dict[str, PoolState]
    slots: dict[str, WorkerSlots]


class SlotsState(msgspec.Struct):
    """
    The slots of the host for one server.

    :param capacity: int.
    :param held: by all processes of the host, int.
    :param orphans: those of killed processes, int.
    :param wanted: processes that wait for one, int.
    :param text: names the processes that hold them and those that wait, str.
    """

    capacity: int
    held: int
    orphans: int
    wanted: int
    text: str = ""


class RouteState(msgspec.Struct):
    """
    A route, in the last ten seconds.

    :param route: str.
    :param rate: requests a second, float.
    :param failed: of them, the part that was answered with a 5xx, float.
    :param p50_s: seconds, float; None: there was no request.
    :param p99_s: seconds, float; None: there was no request.
    :param parts_s: seconds that a request has spent in each part on average, by its name.
    """

    route: str
    rate: float
    failed: float
    p50_s: float | None
    p99_s: float | None
    parts_s: dict[str, float]


class BlockedState(msgspec.Struct):
    """
    A worker whose hub is blocked.

    :param pid: of the worker, int.
    :param seconds: for which it has been, float.
    :param function: that blocks it, str; empty if unknown: it may wait for a processor.
    :param hub: what the worker does; None: unknown.
    """

    pid: int
    seconds: float
    function: str
    hub: HubState | None


class State(msgspec.Struct):
    """
    All workers of an arbiter.

    :param time: seconds since the epoch, float.
    :param version: of Greenline, str.
    :param findings: what limits it, or is wrong; empty: it is healthy.
    :param rate: requests a second, float.
    :param rates: of refused requests, answers with 5xx, 504s, and clients that disconnected, a
        second, in the last ten seconds.
    :param p50_s: seconds, float; None: there was no request.
    :param p99_s: seconds, float; None: there was no request.
    :param workers: those that run.
    :param pools: of all workers together, by name.
    :param slots: of the host, by the pool's name.
    :param routes: the slowest first.
    :param blocked: workers whose hub is blocked now.
    :param requests: the last ones that were slow or failed.
    :param blocks: the last blocks of hubs.
    :param plans: of the connections, as sums, by the pool's name.
    """

    time: float
    version: str
    findings: list[str]
    rate: float
    rates: dict[str, float]
    p50_s: float | None
    p99_s: float | None
    workers: list[WorkerState]
    pools: dict[str, PoolState]
    slots: dict[str, SlotsState]
    routes: list[RouteState]
    blocked: list[BlockedState]
    requests: list[RequestReport]
    blocks: list[BlockReport]
    plans: dict[str, str]

"""Measure the memory of a worker with idle connections, such as those that a proxy keeps."""

import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from time import monotonic, sleep

from greenline.tune.check import TIMEOUT_S, ask
from greenline.tune.load import Request
from greenline.tune.machine import MIB
from greenline.tune.results import Latencies, Step
from greenline.tune.server import Server

SETTLE_S = 0.5


@contextmanager
def descriptors(number: int) -> Iterator[None]:
    """
    Let this process, and what it starts, open as many for the length of the block.

    :param number: int.
    :raises OSError: the hard limit is smaller.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < number:
        raise OSError(f"{hard} descriptors are too few")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def steps(
    running: Server,
    counts: Sequence[int],
    request: Request,
    headers: Mapping[str, str],
    max_rate: float,
) -> Iterator[Step]:
    """
    Yield the memory of the one worker of *running* with each number of idle connections.

    :param running: a server with one worker.
    :param counts: in ascending order, int.
    :param request: is answered on each connection before it idles.
    :param headers: of each request.
    :param max_rate: new connections a second, each with its request, float.
    :raises OSError: the worker does not answer.
    """
    workers = running.workers
    if workers is None:
        raise AssertionError("it was started here")
    host, opened = running.url.partition("//")[2], 0
    with ExitStack() as stack:
        for count in counts:
            # One request at least: what the first one imports is no socket's memory.
            while opened < max(count, 1):
                until_s = monotonic() + 1 / max_rate
                connection = HTTPConnection(host, timeout=TIMEOUT_S)
                stack.callback(connection.close)
                ask(connection, request, headers)
                opened += 1
                sleep(max(until_s - monotonic(), 0.0))
            sleep(SETTLE_S)
            processes = [*workers.look().processes.values()]
            if len(processes) != 1:  # max_requests of gunicorn, perhaps
                raise OSError("the worker was replaced")
            yield _step(count, processes[0].memory_bytes)


def _step(sockets: int, memory_bytes: int) -> Step:
    return Step(
        setting=float(sockets),
        offered_rate=0.0,
        answered_rate=0.0,
        good_rate=0.0,
        errors=0.0,
        latencies=Latencies(p50_s=None, p99_s=None, p999_s=None, samples=0),
        shares=None,
        cpu_of_workers=0.0,
        memory_mib=memory_bytes / MIB,
        connections=0,
        generator_limited=False,
        rounds=[],
        seconds=SETTLE_S,
    )

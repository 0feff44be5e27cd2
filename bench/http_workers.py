"""
Two workers of ours beside one: the processor time of a request, of all processes.

Both are offered the same rate, in interleaved rounds; the middle of the rounds' ratios is judged.
Where there are four cores the workers have two of them, and a closed loop measures the throughput.
"""

import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench import cores, promises, vegeta, wrk
from bench.http_lineup import Peer, lineup
from bench.http_report import Http
from bench.report import OURS
from bench.rounds import interleaved, refused
from bench.servers import Server

RATE, SECONDS, CLIENTS, ROUNDS = 2000, 3.0, 100, 5
WRK_S = 2
ENOUGH_CORES = 4
MAX_RATIO = 1.05


def measure(found: Http, folder: Path, rounds: int = ROUNDS) -> list[promises.Verdict]:
    """Start both, measure them in turns, and judge the processor time."""
    has_cores = len(os.sched_getaffinity(0)) >= ENOUGH_CORES
    servers_cores, others_cores = cores.divided(2 if has_cores else 1)
    with ExitStack() as stack:
        servers: dict[int, Server] = {}
        with cores.on(servers_cores):
            for workers in (1, 2):
                servers[workers] = stack.enter_context(peer(workers).server(folder))
        with cores.on(others_cores):
            costs = cpu_us(found, servers, rounds)
            speeds = throughput(servers, rounds) if has_cores else None
    return judge(found, costs, speeds)


def peer(workers: int) -> Peer:
    """Return ours with so many *workers*."""
    (ours,) = (each for each in lineup() if each.who == OURS)
    arguments = (*ours.arguments, "--workers", str(workers))
    return replace(ours, who=f"{OURS}-{workers}", arguments=arguments)


def cpu_us(found: Http, servers: dict[int, Server], rounds: int) -> dict[int, list[float]]:
    """Return the microseconds of a request in each round, by the number of workers."""
    costs: dict[int, list[float]] = {workers: [] for workers in servers}
    for round_, (workers, server) in interleaved(list(servers.items()), rounds):
        print(f"round {round_ + 1}, {workers} workers", file=sys.stderr, flush=True)
        before_us = server.cpu_us()
        answers = vegeta.attack(f"{server.url}/", RATE, SECONDS, connections=CLIENTS)
        costs[workers].append((server.cpu_us() - before_us) / len(answers))
        result = vegeta.split_by_status(answers, CLIENTS, SECONDS)
        if problem := refused(result.answers):
            found.invalid(f"{workers} workers, round {round_ + 1}: {problem}")
    return costs


def throughput(servers: dict[int, Server], rounds: int) -> dict[int, list[float]]:
    """Return the requests a second in each round, by the number of workers."""
    speeds: dict[int, list[float]] = {workers: [] for workers in servers}
    for _, (workers, server) in interleaved(list(servers.items()), rounds):
        speeds[workers].append(wrk.run(server.url, CLIENTS, WRK_S).req_s)
    return speeds


def judge(
    found: Http, costs: dict[int, list[float]], speeds: dict[int, list[float]] | None
) -> list[promises.Verdict]:
    """Judge what two workers cost; the throughput is a note, where it was measured."""
    what = f"CPU of a request with two workers over that with one, {RATE:,} requests/s"
    verdict = promises.at_most(what, middle_ratio(costs), MAX_RATIO)
    lines = [f"- {verdict.text}"]
    if speeds is not None:
        lines.append(f"- requests a second of two workers over one: {middle_ratio(speeds):.2f}")
    found.notes.append("\n".join(lines))
    return [verdict]


def middle_ratio(figures: dict[int, Sequence[float]] | dict[int, list[float]]) -> float:
    """Return the middle of the rounds' ratios of two workers to one."""
    pairs = zip(figures[2], figures[1], strict=True)
    return statistics.median(two / one for two, one in pairs)

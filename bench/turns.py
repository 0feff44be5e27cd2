"""
Ask for a small page beside pages that keep a thread, on our worker and on gunicorn's threads.

1. Clients ask for pages that compute for about ten milliseconds, at once or after a wait, or for a
   hundred, that copy two hundred files, compress two megabytes, hash sixteen, let a thread hash
   that takes one after the other from a queue, or wait for ten milliseconds in C, and one client
   for a small page. All serve the same WSGI application, unmodified, on one worker.
2. The servers have a core, those who ask the others. Rounds are interleaved; a ratio is the middle
   one of those in each round.
3. The exit status is 1 when the run is invalid, when the small page takes longer than promised
   beside that of the best of gunicorn's threads, or when fewer of the others are answered.

    python -m bench.turns [--rounds 5]
"""

import argparse
import socketserver
import statistics
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import cores, load, promises, report
from bench.rounds import interleaved
from bench.servers import Gunicorn

THREADS = (8, 16, 32)
# C code that lets other threads run: there the small page of gthread-32 is as fast, and ours is
# answered so often that it has a fifth of the processor.
IN_C = ("/compresses", "/hashes", "/queues", "/waits-in-c")
WORKS = ("/computes", "/waits", "/computes-long", "/copies", *IN_C)
SMALL = "/small"
CLIENTS = 20
WARM_S, SMALL_S, ROUND_S = 1.0, 0.1, 3.0
MAX_P50, MAX_P99, MIN_RATIO = 0.5, 1.0, 0.9
MAX_P50_IN_C, MIN_RATIO_IN_C = 1.0, 0.8


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(100):
            self.request.sendall(data)


@contextmanager
def echo() -> Iterator[int]:
    """Run a server that sends back what it reads; yield its port."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def measure(found: report.Report, rounds: int) -> list[promises.Verdict]:
    """Start all, measure them in turns, and judge."""
    workers = {report.OURS: ("--worker-class", "greenline.worker.GreenWorker")}
    for threads in THREADS:
        workers[f"gthread-{threads}"] = ("--worker-class", "gthread", "--threads", str(threads))
    theirs, others = cores.divided()
    verdicts = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        port = stack.enter_context(echo())
        servers = {}
        for who, worker in workers.items():
            server = Gunicorn(
                ("-c", "bench/peers/gunicorn_plain.py", *worker, "--workers", "1",
                 "bench.peers.computing:app"),
                ready=SMALL,
                env={"BENCH_ECHO_PORT": str(port)},
                log=folder / f"{who}.log",
            )  # fmt: skip
            with cores.on(theirs):
                servers[who] = stack.enter_context(server)
        stack.enter_context(cores.on(others))
        for path in WORKS:
            rows: dict[str, list[tuple[report.Row, report.Row]]] = {who: [] for who in servers}
            for server in servers.values():
                ask(server, path, CLIENTS, WARM_S)
            for _, (who, server) in interleaved(list(servers.items()), rounds):
                # The small page has visitors at other times too: turns are taken beside them.
                ask(server, SMALL, 1, SMALL_S)
                rows[who].append(_beside(path, who, server))
            for pairs in rows.values():
                for each in zip(*pairs, strict=True):
                    row = report.middle(each)
                    found.add(row)
                    if set(row.answers) - {"200"} and row.who == report.OURS:
                        found.invalid(f"{row.work}: {row.answers}")
            verdicts += judge(path, rows)
    return verdicts


def ask(server: Gunicorn, path: str, clients: int, seconds: float) -> load.Run:
    """Ask for *path* from *clients* at once."""
    return load.run_for([server.url + path], seconds, clients, marker=path, headers={})


def judge(
    path: str, rows: dict[str, list[tuple[report.Row, report.Row]]]
) -> list[promises.Verdict]:
    """Compare the small page and the others with those of the best gthread, round by round."""
    ours, peers = rows[report.OURS], [rows[who] for who in rows if who != report.OURS]

    def over_best(figures: Sequence[Sequence[float]], best: object) -> float:
        mine, *its = figures
        chosen = (min if best is min else max)(its, key=statistics.median)
        return statistics.median(a / b for a, b in zip(mine, chosen, strict=True))

    small = [[one for _, one in each] for each in (ours, *peers)]
    p50, p99 = (
        over_best([[getattr(row, name) or 0.0 for row in each] for each in small], min)
        for name in ("p50_ms", "p99_ms")
    )
    speed = over_best([[row.req_s for row, _ in each] for each in (ours, *peers)], max)
    max_p50, min_ratio = (MAX_P50_IN_C, MIN_RATIO_IN_C) if path in IN_C else (MAX_P50, MIN_RATIO)
    return [
        promises.at_most(f"{SMALL} beside {path}, p50 over the best gthread's", p50, max_p50),
        promises.at_most(f"{SMALL} beside {path}, p99 over the best gthread's", p99, MAX_P99),
        promises.at_least(f"{path}, req/s over the best gthread's", speed, min_ratio),
    ]


def _beside(path: str, who: str, server: Gunicorn) -> tuple[report.Row, report.Row]:
    """Return the rows of *path* and of the small page, which are asked for at once."""
    before_us = server.cpu_us()
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(ask, server, each, clients, ROUND_S)
            for each, clients in ((path, CLIENTS), (SMALL, 1))
        ]
        many, small = (each.result() for each in runs)
    cpu_us = round((server.cpu_us() - before_us) / max(len(many.answers), 1))
    return (
        report.row(path, who, load.together([many], CLIENTS), server.rss_mb(), cpu_us=cpu_us),
        report.row(f"{SMALL} beside {path}", who, load.together([small], 1), cpu_us=cpu_us),
    )


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.turns", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each")
    found = report.Report("turns")
    verdicts = measure(found, max(1, parser.parse_args().rounds))
    return max(found.finish(), promises.status(verdicts))


if __name__ == "__main__":
    raise SystemExit(main())

"""
sqlite3 behind native threads: a view with five statements on our worker and on gunicorn's threads.

1. Both serve the same Flask application, unmodified, on one worker; gthread has THREADS threads.
2. Rounds are interleaved; a row is the middle one. wrk asks, a closed loop. `cpu_us` is the
   server's processor time for a request, which other load hardly changes.
3. The exit status is 1 when the run is invalid, or when a view is slower than MIN_RATIO of the
   peer's.

    python -m bench.offload [--rounds 3]
"""

import argparse
import sqlite3
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from bench import promises, report, wrk
from bench.rounds import interleaved
from bench.servers import Gunicorn

THREADS = 16
PEER = f"gthread-{THREADS}"
WORKERS = {
    report.OURS: ("--worker-class", "greenline.worker.GreenWorker"),
    PEER: ("--worker-class", "gthread", "--threads", str(THREADS)),
}
WORKS = ("/kept", "/fresh", "/write")
CLIENTS = (1, 16, 50)
WARM_S, ROUND_S = 1, 2
MIN_RATIO = 0.8
BOOKS = 1000


def make_database(path: Path) -> None:
    """Make what the views read, in sqlite's own journal mode."""
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("create table book (id integer primary key, title text, pages integer)")
        books = [(number, f"title {number}", number) for number in range(1, BOOKS + 1)]
        conn.executemany("insert into book values (?, ?, ?)", books)
        conn.commit()


def measure(found: report.Report, rounds: int) -> list[promises.Verdict]:
    """Start both, measure them in turns, and judge."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        make_database(folder / "books.db")
        servers = {}
        for who, worker in WORKERS.items():
            arguments = ("-c", "bench/peers/gunicorn_plain.py", *worker)
            server = Gunicorn(
                (*arguments, "--workers", "1", "bench.peers.sqlite_flask:app"),
                ready="/kept",
                env={"BENCH_SQLITE": str(folder / "books.db")},
                log=folder / f"{who}.log",
            )
            servers[who] = stack.enter_context(server)
        for path in WORKS:
            for server in servers.values():
                wrk.run(server.url + path, CLIENTS[0], WARM_S)
            for clients in CLIENTS:
                rows: dict[str, list[report.Row]] = {who: [] for who in servers}
                for _, (who, server) in interleaved(list(servers.items()), rounds):
                    before_us = server.cpu_us()
                    result = wrk.run(server.url + path, clients, ROUND_S)
                    used_us = server.cpu_us() - before_us
                    cpu_us = round(used_us / max(result.asked, 1))
                    rows[who].append(report.row(path, who, result, server.rss_mb(), cpu_us=cpu_us))
                    if set(result.answers) - {"200"} and who == report.OURS:
                        found.invalid(f"{path} {clients} clients: {result.answers}")
                for each in rows.values():
                    found.add(report.middle(each))
    ratios = report.ratios(found.rows)
    return [
        promises.at_least(f"{path}, {clients} clients, over {PEER}", its[PEER] or 0.0, MIN_RATIO)
        for path in WORKS
        for clients, its in ratios[path].items()
    ]


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.offload", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each")
    found = report.Report("offload")
    verdicts = measure(found, max(1, parser.parse_args().rounds))
    print(report.ratio_table(report.ratios(found.rows)))
    return max(found.finish(), promises.status(verdicts))


if __name__ == "__main__":
    raise SystemExit(main())

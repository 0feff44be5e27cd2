"""
What ``/metrics`` costs: our worker with it and without it, on the same application.

1. Both have one worker and answer a small JSON object of bench-http's, which costs as little as a
   request can. With it, ``/metrics`` is asked every SCRAPE_S.
2. There are PAIRS servers of each, because one process may be a few percent slower than the next
   for as long as it lives. Rounds are interleaved; a ratio is of the middle rounds of all.
3. The exit status is 1 when the run is invalid, or when the ratio is below MIN_RATIO.

    python -m bench.metrics [--rounds 4]
"""

import argparse
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import promises, report, wrk
from bench.rounds import interleaved
from bench.servers import Gunicorn, free_port

WITHOUT = "without"
PAIRS, CLIENTS = 2, (10, 100)
SCRAPE_S = 1.0  # 15 times as often as with deploy/prometheus
WARM_S, ROUND_S = 1, 3
MIN_RATIO = 0.98
ARGUMENTS = (
    "-c", "bench/peers/gunicorn_plain.py", "--worker-class", "greenline.worker.GreenWorker",
    "--workers", "1", "bench.peers.json_wsgi:app",
)  # fmt: skip


@contextmanager
def scraped(url: str) -> Iterator[None]:
    """Ask *url* every SCRAPE_S for the length of the block."""
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.wait(SCRAPE_S):
            urllib.request.urlopen(url, timeout=10).read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def measure(found: report.Report, rounds: int) -> list[promises.Verdict]:
    """Start all, measure them in turns, and judge."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        servers: list[tuple[str, Gunicorn]] = []
        for number in range(PAIRS):
            for who in (report.OURS, WITHOUT):
                port = free_port()
                env = {"GREENLINE_OPS_BIND": f"127.0.0.1:{port}"} if who == report.OURS else {}
                log = folder / f"{who}-{number}.log"
                server = Gunicorn(ARGUMENTS, ready="/", env=env, log=log)
                servers.append((who, stack.enter_context(server)))
                if env:
                    stack.enter_context(scraped(f"http://127.0.0.1:{port}/metrics"))
        for _, server in servers:
            wrk.run(server.url, CLIENTS[0], WARM_S)
        for clients in CLIENTS:
            print(f"{clients} connections", file=sys.stderr, flush=True)
            rows: dict[str, list[report.Row]] = {report.OURS: [], WITHOUT: []}
            for _, (who, server) in interleaved(servers, rounds):
                before_us = server.cpu_us()
                result = wrk.run(server.url, clients, ROUND_S)
                cpu_us = round((server.cpu_us() - before_us) / max(result.asked, 1), 1)
                rows[who].append(report.row("json", who, result, server.rss_mb(), cpu_us=cpu_us))
                if set(result.answers) - {"200"}:
                    found.invalid(f"{who}, {clients} connections: {result.answers}")
            for each in rows.values():
                found.add(report.middle(each))
    ratios = report.ratios(found.rows)["json"]
    return [
        promises.at_least(
            f"req/s with /metrics, {clients} connections", its[WITHOUT] or 0.0, MIN_RATIO
        )
        for clients, its in ratios.items()
    ]


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.metrics", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="of each")
    found = report.Report("metrics")
    verdicts = measure(found, max(1, parser.parse_args().rounds))
    print(report.ratio_table(report.ratios(found.rows)))
    return max(found.finish(), promises.status(verdicts))


if __name__ == "__main__":
    raise SystemExit(main())

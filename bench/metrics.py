"""
What ``/metrics`` and the page cost: our worker with them and without, on the same application.

1. All have one worker and answer a small JSON object of bench-http's, which costs as little as a
   request can. With ``/metrics``, it is asked in each round and every SCRAPE_S; with the page, a
   client follows the events that keep it up to date. No other server is watched meanwhile.
2. There are PAIRS servers of each, because one process may be a few percent slower than the next
   for as long as it lives. Rounds are interleaved; a ratio is of the middle rounds of all.
3. The processor time of the page's process is measured at RATE requests a second.
4. The exit status is 1 when the run is invalid, or when a promise is not kept.

    python -m bench.metrics [--rounds 2]
"""

import argparse
import os
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from bench import proc, promises, report, vegeta, wrk
from bench.rounds import interleaved
from bench.servers import Gunicorn, free_port

WITHOUT, PAGE = "without", "page"
PAIRS, CLIENTS = 6, (10, 100)
SCRAPE_S = 5.0  # three times as often as with deploy/prometheus
WARM_S, ROUND_S = 1, 3
RATE, RATE_S = 1_000, 10
MIN_RATIO, MAX_PAGE, MAX_CPU = 0.98, 1.01, 0.05
ARGUMENTS = (
    "-c", "bench/peers/gunicorn_plain.py", "--worker-class", "greenline.worker.GreenWorker",
    "--workers", "1", "bench.peers.json_wsgi:app",
)  # fmt: skip


@contextmanager
def beside(work: Callable[[str, threading.Event], None], url: str) -> Iterator[None]:
    """Do *work* in a thread for the length of the block, whose end the event says."""
    is_over = threading.Event()
    thread = threading.Thread(target=work, args=(url, is_over))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def scrape(url: str, is_over: threading.Event) -> None:
    """Ask for the metrics at *url* every SCRAPE_S."""
    while True:
        urllib.request.urlopen(f"{url}/metrics", timeout=10).read()
        if is_over.wait(SCRAPE_S):
            return


def follow(url: str, is_over: threading.Event) -> None:
    """Read the events of the page at *url*."""
    with urllib.request.urlopen(f"{url}/events", timeout=10) as events:
        while not is_over.is_set():
            events.readline()


def watched(who: str, url: str) -> AbstractContextManager[None]:
    """Watch a server as *who* is watched, for the length of the block."""
    if who == WITHOUT:
        return nullcontext()
    return beside(scrape if who == report.OURS else follow, url)


def page_cpu_s(server: Gunicorn) -> float:
    """Return the processor time that the process of the page has used."""
    (pid,) = (
        child
        for child in proc.children(server.process.pid if server.process else 0)
        if b"greenline.ops" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    return proc.cpu_ticks(pid) / os.sysconf("SC_CLK_TCK")


def measure(found: report.Report, rounds: int) -> list[promises.Verdict]:
    """Start all, measure them in turns, and judge."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        servers: list[tuple[str, Gunicorn]] = []
        urls: dict[Gunicorn, str] = {}  # of their pages
        for number in range(PAIRS):
            for who in (report.OURS, WITHOUT, PAGE):
                port = free_port()
                env = {} if who == WITHOUT else {"GREENLINE_OPS_BIND": f"127.0.0.1:{port}"}
                log = folder / f"{who}-{number}.log"
                server = Gunicorn(ARGUMENTS, ready="/", env=env, log=log)
                servers.append((who, stack.enter_context(server)))
                urls[server] = f"http://127.0.0.1:{port}"
        for _, server in servers:
            wrk.run(server.url, CLIENTS[0], WARM_S)
        for clients in CLIENTS:
            print(f"{clients} connections", file=sys.stderr, flush=True)
            rows: dict[str, list[report.Row]] = {report.OURS: [], WITHOUT: [], PAGE: []}
            for _, (who, server) in interleaved(servers, rounds):
                before_us = server.cpu_us()
                with watched(who, urls[server]):
                    result = wrk.run(server.url, clients, ROUND_S)
                cpu_us = round((server.cpu_us() - before_us) / max(result.asked, 1), 1)
                rows[who].append(report.row("json", who, result, server.rss_mb(), cpu_us=cpu_us))
                if set(result.answers) - {"200"}:
                    found.invalid(f"{who}, {clients} connections: {result.answers}")
            for each in rows.values():
                found.add(report.middle(each))
        paged = next(server for who, server in servers if who == PAGE)
        before_s = page_cpu_s(paged)
        with watched(PAGE, urls[paged]):
            vegeta.attack(paged.url, RATE, RATE_S)
        share = (page_cpu_s(paged) - before_s) / RATE_S
    verdicts = [
        promises.at_most(f"processors of the page at {RATE} requests a second", share, MAX_CPU)
    ]
    for clients, its in report.ratios(found.rows)["json"].items():
        what = f"{clients} connections"
        verdicts += [
            promises.at_least(f"req/s with /metrics, {what}", its[WITHOUT] or 0.0, MIN_RATIO),
            promises.at_most(f"/metrics over the page, {what}", its[PAGE] or 0.0, MAX_PAGE),
        ]
    return verdicts


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.metrics", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="of each")
    found = report.Report("metrics")
    verdicts = measure(found, max(1, parser.parse_args().rounds))
    print(report.ratio_table(report.ratios(found.rows)))
    return max(found.finish(), promises.status(verdicts))


if __name__ == "__main__":
    raise SystemExit(main())

"""
More than can be answered: our worker with its defaults, and with no limit.

1. The route holds one of POOL_SIZE Postgres connections for SLEEP_S seconds. The rate that
   saturates it is what twice as many clients get in a closed loop, without a limit.
2. Then vegeta, an open loop, offers shares of that rate. Each is offered to a server of its own:
   what one left behind does not count for the next.
3. The first LEAD_S seconds of each are not looked at: the limit is found, a queue grows.
4. What counts is goodput: answers 200 within GOOD_S seconds, a second. The exit status is 1 when
   the run is invalid or a promise is missed.

    python -m bench.overload [--seconds 5]
"""

import argparse
import http.client
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psycopg2

from bench import hey, hey_build, picture, promises, report, vegeta
from bench.http_lineup import GREEN
from bench.servers import Gunicorn, ServerError
from embedded.postgres import temporary
from greenline import settings
from greenline.errors import GreenlineError

POOL_SIZE, SLEEP_S = 20, 0.05
SHARES = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
SECONDS, LEAD_S = 5.0, 3.0
GOOD_S = 2.0
# No answer after that is an error: clients wait longer than what counts as good.
PATIENCE_S = 8.0
CLOSED_S = 3.0
DEFAULT, OPEN = "default", "open"
LIMITS: dict[str, dict[str, str]] = {
    DEFAULT: {},
    OPEN: {settings.MAX_IN_PROGRESS.name: "1000000"},
}
WHO = {DEFAULT: "default", OPEN: "no limit"}
MIN_GOODPUT = 0.9
ARGUMENTS = ("-c", "bench/peers/gunicorn_plain.py", *GREEN, "bench.peers.pool_bound:app")
FAILURES = (
    ServerError,
    hey.HeyError,
    hey_build.BuildError,
    vegeta.VegetaError,
    subprocess.TimeoutExpired,
    psycopg2.Error,
    GreenlineError,
    OSError,
    http.client.HTTPException,
)
NOTES = f"""
a pool of {POOL_SIZE}, each held for {SLEEP_S * 1000:.0f} ms; there are as many clients as it takes
req/s and latencies are of all that was asked in that time and answered 200, however late
good/s: answers 200 within {GOOD_S:g} s, a second; "error": no answer after {PATIENCE_S:g} s
the picture is beside the JSON, bench/results/overload.png
Postgres, the worker and vegeta share this machine's cores, and use little of them"""


class Overload:
    """The runs on one Postgres; rows and problems go into *found*."""

    def __init__(self, found: report.Report, database_url: str, folder: Path) -> None:
        self._found = found
        self._env = {
            "DATABASE_URL": database_url,
            "POSTGRES_POOL_SIZE": str(POOL_SIZE),
            "BENCH_SLEEP_S": str(SLEEP_S),
        }
        self._log = folder / "server.log"

    def saturation(self) -> float:
        """Return how many requests a second are answered at most."""
        clients = 2 * POOL_SIZE
        with self._server(OPEN) as server:
            for seconds in (0.5, CLOSED_S):  # The first makes the connections.
                each = max(2, int(seconds / SLEEP_S / 2))
                result = hey.run(f"{server.url}/", each * clients, clients)
        if set(result.answers) != {"200"}:
            raise ServerError(f"answers {result.answers} before anything was measured")
        return result.req_s

    def offer(self, limit: str, share: float, rate: float, seconds: float) -> report.Row:
        """Offer *rate* to a new server with *limit*; return what came of it."""
        print(f"{WHO[limit]}, {share:g} x", file=sys.stderr, flush=True)
        with self._server(limit) as server:
            answers = vegeta.attack(
                f"{server.url}/", rate, seconds, lead_s=LEAD_S, timeout_s=PATIENCE_S
            )
            rss_mb = server.rss_mb()
        result = vegeta.split_by_status(answers, 0, seconds)
        row = report.row(
            f"{share:g} x", WHO[limit], result, rss_mb,
            **{"offered/s": round(rate), "good/s": goodput(answers, seconds)},
        )  # fmt: skip
        self._found.add(row)
        for problem in problems(row, limit, share):
            self._found.invalid(f"{WHO[limit]} {share:g} x: {problem}")
        return row

    def _server(self, limit: str) -> Gunicorn:
        env = {**self._env, **LIMITS[limit]}
        return Gunicorn(ARGUMENTS, ready="/readyz", env=env, log=self._log)


def goodput(answers: Sequence[vegeta.Answer], seconds: float) -> float:
    """Return the answers 200 within GOOD_S, a second."""
    good = sum(each.status == "200" and each.took_s <= GOOD_S for each in answers)
    return round(good / seconds, 1)


def problems(row: report.Row, limit: str, share: float) -> list[str]:
    """Say what makes *row* not count: what no limit, or no worker, may answer."""
    allowed = {"200", "503"} if limit == DEFAULT else {"200", "error"} if share > 1 else {"200"}
    return [f"answers {row.answers}"] if set(row.answers) - allowed else []


def judge(rows: Sequence[report.Row]) -> list[promises.Verdict]:
    """Judge goodput and p99 with the defaults at the highest load."""
    ours = {row.work: row for row in rows if row.who == WHO[DEFAULT]}
    highest = ours[f"{SHARES[-1]:g} x"]
    peak = max(row.more["good/s"] for row in rows)
    verdicts = [
        promises.at_least(
            f"goodput at {highest.work} with the defaults over the best of all loads",
            highest.more["good/s"] / peak if peak else 0.0,
            MIN_GOODPUT,
        )
    ]
    if highest.p99_ms:
        what = f"p99 of the answers at {highest.work}, in seconds"
        verdicts.append(promises.at_most(what, highest.p99_ms / 1000, GOOD_S))
    return verdicts


def run(found: report.Report, seconds: float) -> tuple[list[promises.Verdict], float]:
    """Start Postgres, find the rate that saturates, offer the shares of it, and judge."""
    vegeta.find()  # Built now and not in mid-run.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        postgres = stack.enter_context(temporary())
        overload = Overload(found, postgres.url, folder)
        saturated_rate = overload.saturation()
        print(f"saturated at {saturated_rate:.0f} requests a second", file=sys.stderr, flush=True)
        for share in SHARES:
            for limit in LIMITS:
                overload.offer(limit, share, share * saturated_rate, seconds)
    return judge(found.rows), saturated_rate


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement")
    seconds = max(1.0, parser.parse_args().seconds)
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = report.Report("overload")
    verdicts: list[promises.Verdict] = []
    saturated_rate = 0.0
    try:
        verdicts, saturated_rate = run(found, seconds)
        found.verdicts = verdicts[:1]  # the others are seconds
    except FAILURES as error:
        found.invalid(str(error))
    status = found.finish()
    print(f"{NOTES}\n")
    if verdicts:
        lines: dict[str, list[tuple[float, float]]] = {who: [] for who in WHO.values()}
        for row in found.rows:
            lines[row.who].append((row.more["offered/s"], row.more["good/s"]))
        picture.curves(lines, saturated_rate, report.RESULTS / "overload.png")
    return promises.status(verdicts) or status


if __name__ == "__main__":
    raise SystemExit(main())

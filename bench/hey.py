"""
Run `hey`, and split what it found by status.

1. hey's own summary counts failed requests in its req/s and its latencies. Nothing of it is
   used: every figure here is made from its CSV rows.
2. A row is a request that was answered. One that was not (refused, reset, cut by the timeout)
   has no row: what was asked for less the rows are the "error" answers.
3. hey rounds ``-n`` down to a multiple of ``-c`` and keeps a million rows: both are refused.
4. hey is a closed loop (it cannot offer more than the server takes) and keeps at most 500 idle
   connections, so with more clients than that some connect again for every request.

    python -m bench.hey -n 1000 -c 100 URL [--json]
"""

import argparse
import csv
import json
import math
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench import hey_build

MAX_ROWS = 1_000_000
HEADER = "response-time,"


class HeyError(Exception):
    """hey cannot be run like that, or said something that is not its CSV."""


@dataclass(frozen=True)
class Result:
    """What came of one run; the speeds are those of the 200s alone, None where there were none."""

    asked: int
    clients: int
    answers: dict[str, int]
    seconds: float
    req_s: float
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None


def run(
    url: str,
    requests: int,
    clients: int,
    *,
    timeout_s: int = 20,
    keepalive: bool = True,
    options: Sequence[str] = (),
) -> Result:
    """
    Ask *url* *requests* times from *clients* at once.

    A request without an answer after *timeout_s* (0: never) is an error. *options* are hey's
    own, such as ``["-m", "POST", "-d", body]``.
    """
    refuse(requests, clients)
    command = [hey_build.find(), "-o", "csv", "-n", str(requests), "-c", str(clients)]
    command += ["-t", str(timeout_s), *options]
    if not keepalive:
        command.append("-disable-keepalive")
    # hey's timeout holds for a request, so this only ends a hey that hangs.
    limit_s = timeout_s * (requests // clients) + 60 if timeout_s else None
    began = time.monotonic()
    done = subprocess.run(
        [*command, url], capture_output=True, text=True, timeout=limit_s, check=False
    )
    wall_s = time.monotonic() - began
    if done.returncode:
        raise HeyError(f"hey ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return split_by_status(done.stdout, requests, clients, wall_s)


def refuse(requests: int, clients: int) -> None:
    """Refuse what hey would do differently without a word."""
    if clients < 1 or requests < clients:
        raise HeyError(f"{requests} requests from {clients} clients: at least one each")
    if requests % clients:
        raise HeyError(f"{requests} requests is not a multiple of {clients} clients")
    if requests > MAX_ROWS:
        raise HeyError(f"{requests} requests: hey keeps only {MAX_ROWS} rows")


def split_by_status(text: str, asked: int, clients: int, wall_s: float) -> Result:
    """Read hey's CSV *text* of a run of *asked* requests that took the process *wall_s*."""
    if not text.startswith(HEADER):
        raise HeyError(f"not hey's CSV: {text[:80]!r}")
    answers: Counter[str] = Counter()
    good_s: list[float] = []
    first_s, last_s = math.inf, 0.0
    for row in csv.DictReader(text.splitlines()):
        taken_s, offset_s = float(row["response-time"]), float(row["offset"])
        status = row["status-code"].strip()
        answers[status] += 1
        if status == "200":
            good_s.append(taken_s)
        first_s, last_s = min(first_s, offset_s), max(last_s, offset_s + taken_s)
    if (lost := asked - answers.total()) > 0:
        answers["error"] = lost
    # From the first question to the last answer: hey's own start and its printing do not
    # count. Where an answer is missing nothing tells when it was given up, so all counts.
    seconds = wall_s if lost else last_s - first_s
    good_s.sort()
    return Result(
        asked=asked,
        clients=clients,
        answers=dict(sorted(answers.items())),
        seconds=round(seconds, 4),
        req_s=round(len(good_s) / seconds, 2) if seconds else 0.0,
        p50_ms=percentile_ms(good_s, 0.50),
        p99_ms=percentile_ms(good_s, 0.99),
        p999_ms=percentile_ms(good_s, 0.999),
    )


def percentile_ms(ordered_s: Sequence[float], share: float, digits: int = 1) -> float | None:
    """Return the smallest latency that *share* do not exceed (nearest rank, no guessing)."""
    if not ordered_s:
        return None
    return round(ordered_s[math.ceil(share * len(ordered_s)) - 1] * 1000, digits)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run hey once from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.hey", description="hey, by status")
    parser.add_argument("-n", type=int, default=200, help="requests, a multiple of -c")
    parser.add_argument("-c", type=int, default=50, help="clients at once")
    parser.add_argument("-t", type=int, default=20, help="seconds for an answer, 0: for ever")
    parser.add_argument("--disable-keepalive", action="store_true")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("url")
    args = parser.parse_args(arguments)
    try:
        keepalive = not args.disable_keepalive
        result = run(args.url, args.n, args.c, timeout_s=args.t, keepalive=keepalive)
    except (HeyError, hey_build.BuildError) as error:
        parser.error(str(error))
    figures = asdict(result)
    if args.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:8} {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""
Run `wrk`, a closed loop that costs a core little and asks as fast as it is answered.

1. It counts answers above 399 and those that failed (connect, read, write, timeout), no more:
   they are the statuses "4xx-5xx" and "error". Its latencies are of all answers together.
2. It is the system's package: where it is missing, root has it installed, and for anybody else
   there is none.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.hey import Result

SCRIPT = Path(__file__).parent / "wrk.lua"
FIELDS = 7


class WrkError(Exception):
    """wrk failed, or said something else than our script does."""


def find() -> str | None:
    """Return the path of wrk, installed first where that is possible; None: there is none."""
    apt = shutil.which("apt-get")
    if shutil.which("wrk") is None and apt and os.geteuid() == 0:
        print("installing the system package wrk", file=sys.stderr, flush=True)
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", "wrk"]):
            subprocess.run([apt, "-qq", *arguments], env=env, capture_output=True, timeout=300)
    return shutil.which("wrk")


def run(url: str, clients: int, seconds: int) -> Result:
    """Ask *url* from *clients* connections for *seconds*."""
    command = [find() or "wrk", "-t", "1", "-c", str(clients), "-d", str(seconds)]
    command += ["--timeout", "20", "-s", str(SCRIPT), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    if done.returncode:
        raise WrkError(f"wrk ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return parse(done.stdout, clients)


def parse(text: str, clients: int) -> Result:
    """Read the last line of wrk's *text*, which our script wrote."""
    fields = text.strip().rpartition("\n")[2].split()
    if len(fields) != FIELDS or not all(each.isdigit() for each in fields):
        raise WrkError(f"not our script's line: {text[-80:]!r}")
    requests, taken_us, refused, failed, *latencies_us = map(int, fields)
    good, seconds = requests - refused, taken_us / 1e6
    counts = {"200": good, "4xx-5xx": refused, "error": failed}
    p50_ms, p99_ms, p999_ms = (each / 1000 if good else None for each in latencies_us)
    return Result(
        asked=requests + failed,
        clients=clients,
        answers={status: count for status, count in counts.items() if count},
        seconds=round(seconds, 4),
        req_s=round(good / seconds, 2) if seconds else 0.0,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        p999_ms=p999_ms,
    )

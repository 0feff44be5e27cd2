"""
Run `wrk`, a closed loop that costs a core little and asks as fast as it is answered.

1. It counts answers with another status than the right one and those that failed (connect, read,
   write, timeout), no more: they are the statuses "wrong" and "error". Where a 200 is right, only
   statuses above 399 are wrong. Its latencies are of all answers together.
2. It is the system's package, or unpacked in ``var`` where it is not installed.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.hey import Result
from embedded import debian
from greenline.errors import ConfigError

SCRIPT = Path(__file__).parent / "wrk.lua"
FIELDS = 7


class WrkError(Exception):
    """wrk cannot be had, failed, or said something else than our script does."""


def run(
    url: str,
    clients: int,
    seconds: int,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: str | None = None,
    status: int = 200,
) -> Result:
    """
    Ask *url* from *clients* connections for *seconds*.

    :param status: the status of a right answer, int. Default 200.
    :raises WrkError: it cannot be had, or failed.
    """
    try:
        program, env = debian.program("wrk")
    except ConfigError as error:
        raise WrkError(str(error)) from error
    command = [str(program), "-t", "1", "-c", str(clients), "-d", str(seconds)]
    command += ["--timeout", "20", "-s", str(SCRIPT)]
    for name, value in (headers or {}).items():
        command += ["-H", f"{name}: {value}"]
    command += ["--", url, method, str(status), *([] if body is None else [body])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds + 60)
    if done.returncode:
        raise WrkError(f"wrk ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return parse(done.stdout, clients, status)


def parse(text: str, clients: int, status: int = 200) -> Result:
    """Read the last line of wrk's *text*, which our script wrote; *status* is the right one."""
    fields = text.strip().rpartition("\n")[2].split()
    if len(fields) != FIELDS or not all(each.isdigit() for each in fields):
        raise WrkError(f"not our script's line: {text[-80:]!r}")
    requests, taken_us, wrong, failed, *latencies_us = map(int, fields)
    good, seconds = requests - wrong, taken_us / 1e6
    counts = {str(status): good, "wrong": wrong, "error": failed}
    p50_ms, p99_ms, p999_ms = (each / 1000 if good else None for each in latencies_us)
    return Result(
        asked=requests + failed,
        clients=clients,
        answers={each: count for each, count in counts.items() if count},
        seconds=round(seconds, 4),
        req_s=round(good / seconds, 2) if seconds else 0.0,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        p999_ms=p999_ms,
    )

"""
Log the connection budget before gunicorn's arbiter forks, and exit if the server allows less.

A database that cannot be reached does not prevent the start, because the workers wait for it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from greenline.budget import FITS, UNREACHABLE

BUDGET_TIMEOUT_S = 10.0
# The first line of each of its tables begins with one of these.
SERVERS = ("Postgres: ", "MongoDB: ")

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def budget_shown(server: Any) -> Iterator[None]:
    """
    Run ``greenline budget`` during the block, then log its result, or exit with its error.

    The sums are logged at the level DEBUG.

    :param server: gunicorn's Arbiter.
    """
    asked = _ask(server)
    try:
        yield
        _show(server, asked)
    finally:
        asked.kill()
        asked.communicate()


def _ask(server: Any) -> "subprocess.Popen[str]":
    # A process of its own: the arbiter must open no connection and import no driver before a fork.
    cfg = server.cfg
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    mine = {"WEB_CONCURRENCY": str(cfg.workers), "PYTHONPATH": path}
    other = cfg.uid != os.geteuid()  # peer authentication is by the user's name
    return subprocess.Popen(
        [sys.executable, "-m", "greenline", "budget"],
        env={**os.environ, **cfg.env, **mine},
        user=cfg.uid if other else None,
        group=cfg.gid if other else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _heads(answer: str) -> str:
    """Return the first lines of the tables of ``greenline budget`` as one line."""
    heads = [line for line in answer.splitlines() if line.startswith(SERVERS)]
    return f"{'; '.join(heads)}; the sums: greenline budget"


def _show(server: Any, asked: "subprocess.Popen[str]") -> None:
    try:
        answer, complaint = asked.communicate(timeout=BUDGET_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.log.warning("connection budget: no answer within %.0f s", BUDGET_TIMEOUT_S)
        return
    if answer:
        server.log.info("%s", _heads(answer))
        server.log.debug("connection budget\n%s", answer.rstrip())
    lines = complaint.strip().splitlines()
    problems = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    # A crash of the command reports no problem, and must not prevent the start.
    if problems and asked.returncode not in (FITS, UNREACHABLE):
        sys.exit(f"greenline: {'; '.join(problems)}")
    for line in problems or lines[-1:]:
        server.log.warning("connection budget: %s", line)

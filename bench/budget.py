"""
What our service may hold of a Postgres, as it says itself, and how the server is made its judge.

A count of backends is read one after the other, and may miss or double one. A role's own
connection limit is kept by the server under its lock: with the budget as the limit, one connection
more would be refused, and the server's log would say so.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import psycopg2

from bench.servers import ROOT, ServerError
from embedded.postgres import Postgres

REFUSALS = ("too many connections", "too many clients", "remaining connection slots")


@dataclass(frozen=True)
class Budget:
    """Of ``greenline budget``: connections a host, an even share of a worker's pool, the most."""

    host: int
    worker: int
    max_pool_size: int


def ask(env: Mapping[str, str]) -> Budget:
    """Ask ``greenline budget`` with *env*, which has the URLs."""
    command = [sys.executable, "-m", "greenline", "budget", "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env=dict(env), capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise ServerError(f"greenline budget: {done.stderr.strip()[-500:]}")
    plan = json.loads(done.stdout)["postgres"]
    return Budget(plan["host"], plan["worker"], plan["max_pool_size"])


def make_judge(postgres: Postgres, budget: Budget) -> None:
    """Have the server refuse our role a connection more than *budget*."""
    with closing(psycopg2.connect(postgres.superuser_url)) as admin:
        admin.autocommit = True
        admin.cursor().execute(f"alter role greenline connection limit {budget.host}")


def refusals(postgres: Postgres) -> int:
    """Return how many connections the server has refused because there were too many."""
    lines = postgres.log.read_text(errors="replace").splitlines()
    return sum(any(each in line for each in REFUSALS) for line in lines)

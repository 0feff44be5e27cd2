"""
Load the application and sum up the connections before gunicorn's arbiter forks its workers.

A database that cannot be reached does not prevent the start, because the workers wait for it.
"""

import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from runpy import run_module
from typing import Any

from greenline.budget import FITS, UNREACHABLE
from greenline.worker.dry_run import try_application

BUDGET_TIMEOUT_S = 10.0
# The first line of each of its tables begins with one of these.
SERVERS = ("Postgres: ", "MongoDB: ")


def check(server: Any) -> None:
    """
    Load the application, and log the result of ``greenline budget``; exit if one of them fails.

    The sums are logged at the level DEBUG.

    :param server: gunicorn's Arbiter.
    """
    answer = try_application(server, _ask, BUDGET_TIMEOUT_S)
    if answer:
        _show(server, *json.loads(answer))
    else:
        server.log.warning("connection budget: no answer within %.0f s", BUDGET_TIMEOUT_S)


def _ask(server: Any) -> bytes:
    """Return the status of ``greenline budget`` and what it prints, from the dry run's process."""
    # Not in the arbiter, which must open no connection and import no driver before a fork.
    os.environ["WEB_CONCURRENCY"] = str(server.cfg.workers)
    sys.argv = ["greenline", "budget"]
    printed, complaint = StringIO(), StringIO()
    status: Any = FITS
    with redirect_stdout(printed), redirect_stderr(complaint):
        try:
            run_module("greenline", run_name="__main__")
        except SystemExit as end:
            status = end.code
        except Exception as error:
            # That the command is broken must not prevent the start.
            print(repr(error), file=sys.stderr)
            status = UNREACHABLE
    return json.dumps([status, printed.getvalue(), complaint.getvalue()]).encode()


def _heads(answer: str) -> str:
    """Return the first lines of the tables of ``greenline budget`` as one line."""
    heads = [line for line in answer.splitlines() if line.startswith(SERVERS)]
    return f"{'; '.join(heads)}; the sums: greenline budget"


def _show(server: Any, status: int, answer: str, complaint: str) -> None:
    if answer:
        server.log.info("%s", _heads(answer))
        server.log.debug("connection budget\n%s", answer.rstrip())
    lines = complaint.strip().splitlines()
    problems = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    if problems and status not in (FITS, UNREACHABLE):
        sys.exit(f"greenline: {'; '.join(problems)}")
    for line in problems or lines[-1:]:
        server.log.warning("connection budget: %s", line)

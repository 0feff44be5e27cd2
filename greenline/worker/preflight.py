"""
Log the connection budget before gunicorn's arbiter forks, and exit if the server allows less.

A database that cannot be reached does not prevent the start, because the workers wait for it.
"""

import json
import os
import runpy
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, NamedTuple, NoReturn

from gunicorn import util

from greenline import settings
from greenline.budget import FITS, UNREACHABLE
from greenline.offload import imports

BUDGET_TIMEOUT_S = 10.0
# The first line of each of its tables begins with one of these.
SERVERS = ("Postgres: ", "MongoDB: ")


class Asked(NamedTuple):
    """
    A child that runs ``greenline budget``.

    :param child: its process id, int.
    :param answer: the pipe that has the status, the output and the errors at its end.
    """

    child: int
    answer: int


@contextmanager
def budget_shown(server: Any) -> Iterator[None]:
    """
    Run ``greenline budget`` during the block, then log its result, or exit with its error.

    The sums are logged at the level DEBUG.

    :param server: gunicorn's Arbiter.
    """
    asked = _ask(server.cfg)
    try:
        yield
        _show(server, asked)
    finally:
        os.close(asked.answer)
        os.kill(asked.child, signal.SIGKILL)
        os.waitpid(asked.child, 0)


def _ask(cfg: Any) -> Asked:
    # A process of its own: the arbiter must open no connection and import no driver before a fork.
    # A fork of this one, which has imported half of what the command needs.
    answer, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        _run(cfg, write_end)
    os.close(write_end)
    return Asked(child, answer)


def _run(cfg: Any, write_end: int) -> NoReturn:
    status, out, err = FITS, StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            os.environ.update({**cfg.env, settings.WORKERS.name: str(cfg.workers)})
            # Peer authentication is by the user's name.
            util.set_owner_process(cfg.uid, cfg.gid, initgroups=cfg.initgroups)
            imports.forget_actions()  # they are for the workers
            sys.argv = ["greenline", "budget"]
            runpy.run_module("greenline", run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
    with open(write_end, "w") as pipe:
        json.dump((status, out.getvalue(), err.getvalue()), pipe)
    os._exit(0)  # never return into the arbiter's code


def _heads(answer: str) -> str:
    """Return the first lines of the tables of ``greenline budget`` as one line."""
    heads = [line for line in answer.splitlines() if line.startswith(SERVERS)]
    return f"{'; '.join(heads)}; the sums: greenline budget"


def _show(server: Any, asked: Asked) -> None:
    poll = select.poll()
    poll.register(asked.answer)
    if not poll.poll(BUDGET_TIMEOUT_S * 1000):
        server.log.warning("connection budget: no answer within %.0f s", BUDGET_TIMEOUT_S)
        return
    with open(asked.answer, closefd=False) as pipe:
        said = pipe.read()
    # Nothing: the child has crashed.
    status, answer, complaint = json.loads(said) if said else (FITS, "", "")
    if answer:
        server.log.info("%s", _heads(answer))
        server.log.debug("connection budget\n%s", answer.rstrip())
    lines = complaint.strip().splitlines()
    problems = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    # A crash of the command reports no problem, and must not prevent the start.
    if problems and status not in (FITS, UNREACHABLE):
        sys.exit(f"greenline: {'; '.join(problems)}")
    for line in problems or lines[-1:]:
        server.log.warning("connection budget: %s", line)

"""Run a bench on a Postgres and a MongoDB of its own, and print what came of it."""

import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench import promises, report
from bench.failures import FAILURES
from bench.servers import allow_files
from embedded.mongo import Mongo
from embedded.postgres import Postgres, temporary

Measure = Callable[[report.Report, Postgres, str, Path], list[promises.Verdict]]


def run(name: str, max_connections: int, measure: Measure, notes: str) -> int:
    """
    Return the exit status of the bench *name*: not 0 when it is invalid or a promise was missed.

    *measure* gets the report, both databases (MongoDB's URL) and a folder, and returns verdicts.
    """
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    allow_files()
    found = report.Report(name)
    verdicts: list[promises.Verdict] = []
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
            postgres = stack.enter_context(temporary(max_connections))
            mongo = stack.enter_context(Mongo(folder / "mongo", durable=False))
            found.verdicts = verdicts = measure(found, postgres, mongo.url, folder)
    except FAILURES as error:
        found.invalid(str(error))
    status = found.finish()
    print(f"{notes}\n")
    return promises.status(verdicts) or status

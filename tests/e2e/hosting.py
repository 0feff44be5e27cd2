"""Run the worker alone, as the README shows, and ask it."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.helpers.support import Answer, Service, service, wait_until

WORKER = ("-k", "greenline.worker.GreenWorker", "-w", "1")
NO_CONFIG = "tests/e2e/plain_conf.py"


@contextmanager
def hosting(target: str, *arguments: str, **environ: str) -> Iterator[Service]:
    """Run gunicorn with the worker alone, and nothing of the service."""
    with service(
        environ, *WORKER, *arguments, target=target, config=NO_CONFIG, wait=False
    ) as running:
        wait_until(lambda: accepts(running), "the worker to serve")
        yield running


def accepts(running: Service) -> bool:
    """Return whether the worker answers; fail when it has ended."""
    assert running.process.poll() is None, running.log
    try:
        running.get("/count?probe")
    except OSError:
        return False
    return True


def at_once(running: Service, path: str, count: int) -> tuple[list[Answer], float]:
    """Send *count* requests at once, each on its own connection; return how long all took."""
    with ThreadPoolExecutor(count) as clients:
        started = time.monotonic()
        answers = list(clients.map(running.get, [path] * count))
        return answers, time.monotonic() - started

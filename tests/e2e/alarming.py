"""A WSGI application that handles signals, as code for a process a request does."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from typing import Any


class TooLate(Exception):
    """The time is over."""


def too_late(number: int, frame: Any) -> None:
    """Handle SIGALRM."""
    raise TooLate


async def handle_sigterm() -> None:
    """Handle SIGTERM in this loop."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)


signal.signal(signal.SIGALRM, too_late)
# A pipe that is full, as one is that nothing reads.
reading, writing = os.pipe()
os.set_blocking(writing, False)
while True:
    try:
        os.write(writing, bytes(4_096))
    except BlockingIOError:
        break
signal.set_wakeup_fd(writing, warn_on_full_buffer=False)


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer with the process's id."""
    path = environ["PATH_INFO"]
    if path == "/handler":
        signal.signal(signal.SIGALRM, too_late)
    if path in ("/handler", "/alarm"):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    if path in ("/handler", "/alarm", "/wait"):
        time.sleep(1.0)
    if path == "/wakeup":
        signal.set_wakeup_fd(writing)
    if path == "/loop":
        asyncio.run(handle_sigterm())
    if path == "/child":
        # The child sets the default handlers, in this greenlet.
        subprocess.run(["true"], check=True, restore_signals=True)
    body = str(os.getpid()).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]

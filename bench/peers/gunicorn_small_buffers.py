"""
``gunicorn_quiet``, with sockets that hold little of an answer.

The loopback's hold megabytes: no slow client would ever keep a server waiting.
"""

from pathlib import Path
from runpy import run_path
from socket import SO_SNDBUF, SOL_SOCKET
from typing import Any

_quiet = run_path(str(Path(__file__).parent / "gunicorn_quiet.py"))
globals().update({name: value for name, value in _quiet.items() if name[0] != "_"})
SEND_BYTES = 16_384


def when_ready(server: Any) -> None:
    """What is accepted has the listening socket's buffer."""
    for listener in server.LISTENERS:
        listener.sock.setsockopt(SOL_SOCKET, SO_SNDBUF, SEND_BYTES)

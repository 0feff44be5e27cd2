"""
deploy/nginx.conf, run: an nginx before the service, on a unix socket or over TCP.

Addresses and paths of the file are replaced by those of the test, and numbers only where a test
says so. A replacement that finds nothing to replace fails.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedded.nginx import Nginx
from tests.helpers.support import CHECKOUT, free_port, wait_until

CONF = CHECKOUT / "deploy/nginx.conf"
SOCKET_LINE = "server unix:/run/greenline/http.sock max_fails=0;"
TCP_LINE = "# server 127.0.0.1:8000 max_fails=0;"
HOST_LINE = r"# server 10\.0\.0\.[12]:8000 ([^;]*);"
PLACES = {
    "pid /run/nginx.pid;": "pid {folder}/pid;",
    "error_log /var/log/nginx/error.log warn;": "error_log {folder}/error.log warn;",
    "access_log /var/log/nginx/access.log json;": "access_log {folder}/access.log json;",
    "/run/greenline/maintenance": "{folder}/maintenance",
    # Of an unprivileged user there may not be so many.
    "worker_rlimit_nofile 65536;": "",
    "worker_connections 16384;": "worker_connections 4096;",
}


@dataclass
class Behind:
    """An nginx that listens on *port*, and what it logged."""

    nginx: Nginx
    port: int

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect."""
        return ("127.0.0.1", self.port)

    @property
    def errors(self) -> str:
        """The error log."""
        return (self.nginx.folder / "error.log").read_text(errors="replace")

    @property
    def maintenance(self) -> Path:
        """The file that takes the service out of sight."""
        return self.nginx.folder / "maintenance"

    def entries(self) -> list[dict[str, Any]]:
        """Return the lines of the access log; a request is logged when its answer was sent."""
        text = (self.nginx.folder / "access.log").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def statuses(self, count: int) -> Counter[int]:
        """Return how many answers of each status it logged, once there are *count* of them."""
        wait_until(lambda: len(self.entries()) >= count, f"{count} lines in nginx's log")
        return Counter(entry["status"] for entry in self.entries())


def configured(
    port: int, *, sockets: list[Path] | None = None, ports: list[int] | None = None,
    changes: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """
    Return the file for an nginx on *port*, before one unix socket, or one port, or two ports.

    *changes* are replacements of the test's own, as ``{"keepalive_timeout 4s;": ...}``.
    """
    text = CONF.read_text()
    if sockets:
        (path,) = sockets
        text = replaced(text, SOCKET_LINE, f"server unix:{path} max_fails=0;", 2)
    else:
        text = replaced(text, SOCKET_LINE, "", 2)
    if ports and len(ports) == 1:
        text = replaced(text, TCP_LINE, f"server 127.0.0.1:{ports[0]} max_fails=0;", 2)
    elif ports:
        options = re.findall(HOST_LINE, text)
        assert len(options) == 2, "the two hosts of nginx.conf"
        lines = [
            f"server 127.0.0.1:{each} {more};" for each, more in zip(ports, options, strict=True)
        ]
        text = re.sub(HOST_LINE, lambda _: lines.pop(0), text)
    text = replaced(text, "listen 80 backlog=2048;", f"listen 127.0.0.1:{port} backlog=2048;")
    for old, new in {**PLACES, **(changes or {})}.items():
        text = replaced(text, old, new)
    return text


def replaced(text: str, old: str, new: str, count: int = 1) -> str:
    """Replace *old*, which is there *count* times."""
    assert text.count(old) == count, f"nginx.conf has {old!r} {text.count(old)} times"
    return text.replace(old, new)


@contextmanager
def behind(
    *, sockets: list[Path] | None = None, ports: list[int] | None = None,
    changes: Mapping[str, str] | None = None,
) -> Iterator[Behind]:  # fmt: skip
    """Run it; see :func:`configured`."""
    port = free_port()
    nginx = Nginx(configured(port, sockets=sockets, ports=ports, changes=changes))
    nginx.start(port)
    try:
        yield Behind(nginx, port)
    finally:
        nginx.stop()

"""
Tell which worker has which client: the kernel knows, by the ports.

A connection that is not accepted yet is no worker's.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SOCKET = re.compile(r"socket:\[(\d+)\]")


def client_ports(pid: int, server_port: int) -> set[int]:
    """Return the clients' ports of the connections to *server_port* that the process *pid* has."""
    held = set(inodes(pid))
    rows = (row.split() for row in _read(Path(f"/proc/{pid}/net/tcp")).splitlines()[1:])
    pairs = {(_port(row[1]), _port(row[2])) for row in rows if row[9] in held}
    # The listening socket has no peer: its port is 0.
    return {theirs for ours, theirs in pairs if ours == server_port and theirs}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def inodes(pid: int) -> Iterable[str]:
    """Yield the inodes of the sockets that the process *pid* has; none when it is gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError, ProcessLookupError):
                if found := SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{descriptor}")):
                    yield found[1]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError, OSError):
        return ""


def is_stopped(pid: int) -> bool:
    """Return whether a SIGSTOP has reached *pid*."""
    return _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] == ["T"]

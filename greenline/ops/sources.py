"""Find the workers to watch: those of this host, by their shared memory, or those behind a URL."""

import http.client
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec

from greenline.errors import ConfigError
from greenline.ops.states import State
from greenline.ops.watch import Watch
from greenline.telemetry import shared_memory
from greenline.telemetry.counters import OF_ONE

TIMEOUT_S = 10.0


def state_of(target: str | None, token: str | None) -> Callable[[], State]:
    """
    Return a function that returns the state of an arbiter's workers.

    :param target: the URL of its ops port, the path of its socket, or the process id of it or of
        one of its workers, str; None: the only one of this host.
    :param token: the bearer token that the port asks for, str or None.
    :raises ConfigError: there is none, or more than one; the text says what to give.
    """
    if target is None:
        return Watch(_only_memory()).state
    if target.isdecimal():
        return Watch(memory_of(int(target))).state
    if not target.startswith(("http://", "https://", "/")):
        raise ConfigError(
            f"{target!r} is no process id, no path of a socket and no URL such as "
            "http://127.0.0.1:9191"
        )
    return lambda: _asked(target, token)


def memory_of(pid: int) -> int:
    """
    Return a descriptor of the memory that a process shares with its workers.

    :param pid: of the arbiter, or of a worker, int.
    :raises ConfigError: there is no such process, it may not be watched, or has none.
    """
    try:
        found = shared_memory.open_of(pid)
    except ProcessLookupError as error:
        raise ConfigError(str(error)) from None
    except PermissionError:
        raise ConfigError(
            f"this user may not look at process {pid}: run this as its user, or as root"
        ) from None
    except shared_memory.OtherForm:
        raise ConfigError(
            f"process {pid} runs another version of Greenline: run that version's command"
        ) from None
    if found is None:
        raise ConfigError(f"process {pid} is no gunicorn with greenline.worker.GreenWorker")
    return found


def pids_of(memory: int) -> list[int]:
    """Return the process ids of the workers that share a memory."""
    return [values[OF_ONE, "pid"] for values in Watch(memory).running().values()]


def _only_memory() -> int:
    found = shared_memory.all_of_host()
    if not found:
        raise ConfigError(
            "no gunicorn with greenline.worker.GreenWorker of this user runs on this host: give "
            "the URL of one with GREENLINE_OPS_BIND, such as http://127.0.0.1:9191"
        )
    if len(found) > 1:
        pids = ", ".join(str(pids[0]) for pids in map(pids_of, found) if pids)
        raise ConfigError(f"several run on this host: give the process id of a worker: {pids}")
    return found[0]


def _asked(target: str, token: str | None) -> State:
    address = urlsplit(target)
    connection: http.client.HTTPConnection
    if address.scheme == "https":
        connection = http.client.HTTPSConnection(address.netloc, timeout=TIMEOUT_S)
    else:
        connection = http.client.HTTPConnection(address.netloc or "localhost", timeout=TIMEOUT_S)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        if not address.scheme:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(TIMEOUT_S)
            connection.sock.connect(target)
        path = f"{address.path.rstrip('/')}/state" if address.scheme else "/state"
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
    except ConnectionRefusedError as error:
        raise ConfigError(f"{target}: {error}: is GREENLINE_OPS_BIND set there?") from error
    except (OSError, http.client.HTTPException) as error:
        raise ConfigError(f"{target}: {error}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        reason = "set GREENLINE_OPS_TOKEN to its token" if response.status == 401 else "no state"
        raise ConfigError(f"{target}: {response.status} {response.reason}: {reason}")
    try:
        return msgspec.json.decode(body, type=State)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{target}: no state of Greenline: {error}") from error

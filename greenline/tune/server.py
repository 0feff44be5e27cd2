"""Run the application under settings of our choice, or name one that runs already."""

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple
from urllib.parse import urlsplit

from greenline import settings
from greenline.doctor.serving import START_LIMIT_S, TrialError, free_port, serving
from greenline.errors import ConfigError
from greenline.ops.sources import memory_of
from greenline.telemetry import shared_memory
from greenline.tune.machine import cores, cores_of_workers, pin
from greenline.tune.observe import Workers
from greenline.tune.results import CORES_FOR_TWO

WORKER = "greenline.worker.GreenWorker"
# gunicorn.conf.py of the folder, whose raw_env would overwrite what is varied.
CONFIGURATION = """\
import runpy
from pathlib import Path

if Path("gunicorn.conf.py").is_file():
    found = runpy.run_path("gunicorn.conf.py")
    globals().update((name, found[name]) for name in found if not name.startswith("__"))
raw_env = [
    one for one in globals().get("raw_env", []) if one.partition("=")[0] not in {varied!r}
]
# A daemon would be left behind, and these files are those of the service.
daemon, pidfile, accesslog = False, None, None
"""
WORKER_CONNECTIONS = 1_000  # gunicorn's default
GRACEFUL_S = "2"


class Configuration(NamedTuple):
    """
    The settings of a server.

    :param workers: int.
    :param pool: connections of a worker's pool, int; None: as the environment has it; 0: not set.
    :param limit: requests in progress of a worker, int; None: the worker finds the number.
    :param max_wait_s: seconds that a request waits for its turn, float; None: any time.
    :param worker_connections: of a worker, int.
    """

    workers: int
    pool: int | None = None
    limit: int | None = None
    max_wait_s: float | None = None
    worker_connections: int = WORKER_CONNECTIONS

    @property
    def environ(self) -> dict[str, str]:
        """The variables of these settings; a blank one is not set."""
        return {
            settings.WORKERS.name: str(self.workers),
            settings.MAX_IN_PROGRESS.name: "auto" if self.limit is None else str(self.limit),
            settings.MAX_WAIT.name: "" if self.max_wait_s is None else f"{self.max_wait_s:g}",
            **(
                {}
                if self.pool is None
                else {settings.POSTGRES_POOL_SIZE.name: str(self.pool or "")}
            ),
        }


class Server(NamedTuple):
    """
    A server that runs.

    :param url: without a path, str.
    :param workers: None: they are not seen.
    """

    url: str
    workers: Workers | None


@contextmanager
def started(
    target: str, folder: Path, configuration: Configuration, more: Sequence[str] = ()
) -> Iterator[Server]:
    """
    Serve *target* for the length of the block, and wait until all workers have booted.

    :param target: what gunicorn is given, str.
    :param folder: the one that it runs in; a gunicorn.conf.py in it is read, as gunicorn does.
    :param configuration: the settings that are set over those of the environment.
    :param more: options of gunicorn.
    :raises TrialError: it does not serve.
    """
    bind = f"127.0.0.1:{free_port()}"
    arguments = ["-k", WORKER, "-w", str(configuration.workers),
                 "--worker-connections", str(configuration.worker_connections),
                 "--graceful-timeout", GRACEFUL_S, *more]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="greenline-tune-") as name:
        # The workers note where the time of a request goes only if it can be asked for. A socket
        # of its own: an address of the environment may be in use.
        ops = str(Path(name) / "ops.sock")
        environ = {**configuration.environ, settings.OPS_BIND.name: ops}
        file = Path(name) / "gunicorn.conf.py"
        file.write_text(CONFIGURATION.format(varied=[*environ]))
        with serving(target, folder, bind, ["-c", str(file), *arguments], environ) as child:
            if len(cores()) >= CORES_FOR_TWO:
                pin(child.pid, cores_of_workers())
            memory = memory_of(child.pid)
            try:
                workers = Workers(memory)
                until_s = monotonic() + START_LIMIT_S
                while len(workers.running()) < configuration.workers:
                    if monotonic() > until_s or child.poll() is not None:
                        raise TrialError(f"not all of {configuration.workers} workers have booted")
                    sleep(0.02)
                if len(cores()) >= CORES_FOR_TWO:
                    # Those that were forked before.
                    for pid in workers.running():
                        with suppress(OSError):
                            pin(pid, cores_of_workers())
                yield Server(f"http://{bind}", workers)
            finally:
                os.close(memory)


def running(url: str, *, is_owned: bool) -> Server:
    """
    Return the server that answers at *url*, which runs already.

    :param url: without a path, str.
    :param is_owned: the person says that the host is theirs, bool.
    :raises ConfigError: it is not on this machine, and not said to be theirs.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url}: not a URL such as http://127.0.0.1:8000")
        if "@" in parts.netloc:  # a secret, perhaps
            raise ConfigError("--url: a user is not sent: give --header 'Authorization: ...'")
        if parts.path not in ("", "/") or parts.query:
            raise ConfigError(f"--url {url}: its path and query are for --load")
        found = socket.getaddrinfo(parts.hostname, parts.port or parts.scheme)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--url {url}: {error}") from error
    is_allowed = is_owned or parts.hostname == "localhost"
    # Another name may have another address at the next look-up.
    with suppress(ValueError):
        is_allowed = is_allowed or ip_address(parts.hostname).is_loopback
    if not is_allowed:
        raise ConfigError(
            f"--url {url}: {parts.hostname} is neither localhost nor an address of this machine's "
            "loopback; a load is only offered to a host of your own: say so with --i-own-this-host"
        )
    is_here = all(ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)
    return Server(f"{parts.scheme}://{parts.netloc}", _only_workers() if is_here else None)


def _only_workers() -> Workers | None:
    """Return the workers of this host, if there is one gunicorn of ours."""
    memories = shared_memory.all_of_host()
    found = [Workers(memory) for memory in memories]
    if len(found) == 1 and found[0].running():
        return found[0]
    for memory in memories:
        os.close(memory)
    return None

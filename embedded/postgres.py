"""
Run a PostgreSQL of our own for as long as this process lives.

1. It listens on a unix socket only, in a short private folder: a checkout's path may be too long
   for a socket, or have a space in it. So ``trust`` is enough: the folder is the password.
2. As root it runs as a user of its own (``account``), and what that user cannot reach moves out of
   the checkout (``store``); no folder of yours is opened for it.
3. However its supervisor ends it ends too; what a kill -9 left is cleaned by the next start.
"""

import hashlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from embedded import cluster, store
from embedded.account import Account, account
from embedded.lock import FolderLock
from embedded.process import Child, end_orphans, kill_all, run, wait_until
from greenline.errors import ConfigError

START_TIMEOUT_S = 60  # Recovery after a crash reads the log since the last checkpoint.
PORT = 5432  # the name of the socket; nothing listens on a network
SOCKETS = "greenline-"
# Not TMPDIR: a socket's path has 107 characters at most. Each gets a private folder in it.
TMP = Path("/tmp")  # noqa: S108
# Not synchronous_commit=off: a kill of the server must lose nothing, in tests too.
NOT_DURABLE = ("-cfsync=off", "-cfull_page_writes=off")


class Postgres:
    """A server whose data and log lie in *folder*; ``durable=False`` is for tests and benches."""

    def __init__(self, folder: Path, max_connections: int = 100, durable: bool = True) -> None:
        self.folder = folder
        self.max_connections = max_connections
        self.durable = durable
        self._child = Child("Postgres", signal.SIGINT)  # A fast shutdown, in Postgres' words.
        self._lock = FolderLock(folder)
        self._sockets: Path | None = None
        self._title = ""

    @property
    def url(self) -> str:
        """The address for the service: libpq, SQLAlchemy and asyncpg understand it."""
        return f"postgresql://greenline@/greenline?host={self._sockets}&port={PORT}"

    @property
    def superuser_url(self) -> str:
        """The address for tests that watch or disturb the service."""
        return f"postgresql://postgres@/greenline?host={self._sockets}&port={PORT}"

    @property
    def socket(self) -> str:
        """The path of its socket, for whoever stands in between."""
        return f"{self._sockets}/.s.PGSQL.{PORT}"

    @property
    def name(self) -> str:
        """What people call it."""
        return self._child.name

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, None when it does not run."""
        return self._child.pid

    @property
    def log(self) -> Path:
        """The file that Postgres writes to, new at each start."""
        return self.folder / "postgres.log"

    def start(self) -> None:
        """
        Start, making the data on first use, and return when it answers.

        Raises:
            ConfigError: it cannot start; names the variable to change.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        try:
            user = account()
            bin_folder = cluster.binaries(user)
            data = self._data(user, bin_folder)
            # The title of each of its processes: how we know them when their parent is gone.
            self._title = "greenline-" + hashlib.sha256(bytes(data)).hexdigest()[:12]
            end_orphans(self._is_ours)
            self._forget_sockets()
            (data / "postmaster.pid").unlink(missing_ok=True)  # None of them is left.
            self._launch(bin_folder, data, user)
        except BaseException:
            self.stop()
            raise

    def alive(self) -> bool:
        """Return whether the postmaster runs."""
        return self._child.alive()

    def stop(self) -> None:
        """Shut down fast, and wait for it; stop a stopped one and nothing happens."""
        self._child.stop()
        self._clean()

    def kill(self) -> None:
        """Kill the postmaster and its children with SIGKILL, as a power cut would."""
        self._child.kill()
        self._clean()

    def remove(self) -> None:
        """Stop it and remove its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        store.remove_under(self.folder)

    def __enter__(self) -> "Postgres":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Postgres {self.folder} pid={self.pid} max_connections={self.max_connections}>"

    def _data(self, user: Account, bin_folder: Path) -> Path:
        path = self.folder / "data"
        if path.is_symlink() or (os.geteuid() == 0 and not user.can("-x", self.folder)):
            path = store.data_home(path)
        path = path.resolve()
        if not (path / "PG_VERSION").exists():
            if path.exists():
                path.rmdir()
            cluster.make(path, bin_folder, user, self.durable)
        if path.stat().st_uid != user.uid:
            self._give(path, user)
        return path

    def _give(self, path: Path, user: Account) -> None:
        """Hand over data that another user made: an earlier run as ourselves, or as root."""
        if os.geteuid() != 0:
            raise ConfigError(
                f"GREENLINE_DATA: the data in {path} belong to another user; run as that user, "
                "or set GREENLINE_DATA to another folder"
            )
        run(["chown", "-R", f"{user.uid}:{user.gid}", path])

    def _launch(self, bin_folder: Path, data: Path, user: Account) -> None:
        self._sockets = Path(tempfile.mkdtemp(prefix=SOCKETS, dir=TMP))
        os.chown(self._sockets, user.uid, user.gid)
        (self.folder / "sockets").write_text(str(self._sockets))
        command = [
            bin_folder / "postgres",
            f"-D{data}",
            "-clisten_addresses=",
            f"-cport={PORT}",
            f"-cunix_socket_directories={self._sockets}",
            f"-cmax_connections={self.max_connections}",
            f"-ccluster_name={self._title}",
            "-crandom_page_cost=1.1",  # its pages are in memory, or on an SSD
            *(() if self.durable else NOT_DURABLE),
        ]
        with self.log.open("wb") as log:
            self._child.start(command, user.become, log, cluster.environment(), cwd=Path("/"))
        wait_until(lambda: _ready(data) or not self.alive(), START_TIMEOUT_S)
        if not _ready(data) or not self.alive():
            raise cluster.failure(data, self.log.read_text(errors="replace"))

    def _is_ours(self, arguments: list[str]) -> bool:
        return (
            arguments[0].startswith(f"postgres: {self._title}: ")
            or f"-ccluster_name={self._title}" in arguments
        )

    def _clean(self) -> None:
        """Leave no process, no socket folder and no lock, if they are ours."""
        if not self._lock.is_held:
            return
        if self._title:
            kill_all(self._is_ours)
        with suppress(OSError):  # None of them is left, and a crash leaves it behind.
            (self.folder / "data" / "postmaster.pid").unlink()
        self._forget_sockets()
        self._lock.release()

    def _forget_sockets(self) -> None:
        """Remove the socket folder that this server, or a killed one before it, wrote down."""
        note = self.folder / "sockets"
        if note.exists():
            sockets = Path(note.read_text())
            if sockets.parent == TMP and sockets.name.startswith(SOCKETS):
                shutil.rmtree(sockets, ignore_errors=True)
            note.unlink()


@contextmanager
def temporary(max_connections: int = 100) -> Iterator[Postgres]:
    """Lend a fast server with no data in it, which leaves nothing: for tests and benches."""
    folder = Path(tempfile.mkdtemp(prefix="greenline-data-", dir=TMP))
    folder.chmod(0o755)  # Else root's Postgres could not live in it.
    server = Postgres(folder, max_connections, durable=False)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _ready(data: Path) -> bool:
    """Return whether Postgres has written that it takes connections, as pg_ctl looks for it."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) > 7 and lines[7].strip() == "ready"

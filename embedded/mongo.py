"""
Run a MongoDB of our own, or what speaks its protocol, for as long as this process lives.

1. ``mongod`` when it is installed, else SecantusDB, a package that speaks MongoDB's protocol.
2. Either is a replica set of one node, which transactions need, unless it is asked to be none.
3. Either listens on a free port of 127.0.0.1, another one at each start.
"""

import importlib.util
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from embedded.lock import FolderLock
from embedded.process import Child, end_orphans, wait_until
from greenline.errors import ConfigError

START_TIMEOUT_S = 60
REPLICA_SET = "greenline"
SECANTUSDB, PACKAGE = "secantusdb", "secantus"
CACHE_SIZE = "256M"
NOT_YET_INITIALIZED = 94  # MongoDB's error code.


def is_available() -> bool:
    """Return whether there is one to start: SecantusDB has no wheel for some platforms."""
    return bool(shutil.which("mongod") or importlib.util.find_spec(PACKAGE))


class Mongo:
    """
    A server whose data and log lie in *folder*.

    :param folder: path, made when it is not there.
    :param durable: whether an acknowledged write is on the disk, bool, default True; tests that
        kill no server do without.
    :param standalone: whether it is no replica set, bool, default False: without transactions.
    :param test_commands: whether it knows MongoDB's commands for tests, bool, default False.
    """

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool = True,
        standalone: bool = False,
        test_commands: bool = False,
    ) -> None:
        self.folder = folder
        self.kind = "mongod" if shutil.which("mongod") else SECANTUSDB
        self.port = 0
        self._durable, self._standalone = durable, standalone
        self._test_commands = test_commands
        self._child = Child("MongoDB" if self.kind == "mongod" else "SecantusDB")
        self._lock = FolderLock(folder)

    @property
    def url(self) -> str:
        """The address for the service."""
        return f"mongodb://127.0.0.1:{self.port}/"

    @property
    def version(self) -> str:
        """What runs, and which version of it."""
        if self.kind == SECANTUSDB:
            return f"SecantusDB {version(SECANTUSDB)}"
        with self._client() as client:
            return f"mongod {client.server_info()['version']}"

    @property
    def name(self) -> str:
        """What people call it."""
        return self._child.name

    @property
    def pid(self) -> int | None:
        """The server's process id, None when it does not run."""
        return self._child.pid

    @property
    def log(self) -> Path:
        """The file that the server writes to, new at each start."""
        return self.folder / f"{self.kind}.log"

    def start(self) -> None:
        """
        Start, and return when it answers.

        Raises:
            ConfigError: it cannot start; names the variable to change.
        """
        self._data.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        try:
            end_orphans(self._is_ours)
            self._launch()
            if self.kind == "mongod" and not self._standalone:
                self._make_primary()
        except BaseException:
            self.stop()
            raise

    def alive(self) -> bool:
        """Return whether it runs."""
        return self._child.alive()

    def stop(self) -> None:
        """Shut down and wait for it; stop a stopped one and nothing happens."""
        self._child.stop()
        self._lock.release()

    def kill(self) -> None:
        """Kill it with SIGKILL, as a power cut would."""
        self._child.kill()
        self._lock.release()

    def __enter__(self) -> "Mongo":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Mongo {self.kind} {self.folder} pid={self.pid} port={self.port}>"

    @property
    def _data(self) -> Path:
        return (self.folder / self.kind).absolute()

    def _command(self) -> list[str | Path]:
        place = ["--port", str(self.port)]
        if self.kind == "mongod":
            place += ["--bind_ip", "127.0.0.1", "--dbpath", str(self._data)]
            place += [] if self._standalone else ["--replSet", REPLICA_SET]
            place += ["--setParameter", "enableTestCommands=1"] if self._test_commands else []
            return ["mongod", *place]
        # An empty file of its own: without one it reads those of the person and of the machine.
        settings = (self.folder / "secantusd.toml").absolute()
        settings.touch()
        place += ["--config", str(settings), "--storage-path", str(self._data)]
        place += ["--cache-size", CACHE_SIZE]
        place += ["--standalone"] if self._standalone else []
        place += ["--enable-test-commands"] if self._test_commands else []
        place += ["--sync-on-commit"] if self._durable else []
        return [sys.executable, "-m", PACKAGE, *place]

    def _launch(self) -> None:
        with _reserved_port() as self.port:
            command = self._command()
            with self.log.open("wb") as log:
                self._child.start(command, output=log)
            wait_until(lambda: self._listens() or not self.alive(), START_TIMEOUT_S)
        if not self.alive() or not self._answers():
            raise self._failure()

    def _is_ours(self, arguments: list[str]) -> bool:
        program = Path(arguments[0]).name
        return str(self._data) in arguments and (program == "mongod" or PACKAGE in arguments)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _answers(self) -> bool:
        with self._client() as client:
            try:
                client.admin.command("ping")
            except PyMongoError:
                return False
        return True

    def _make_primary(self) -> None:
        """Make the replica set, or tell it that its one member has another port today."""
        member = {"_id": 0, "host": f"127.0.0.1:{self.port}"}
        with self._client() as client:
            try:
                found = client.admin.command("replSetGetConfig")["config"]
            except OperationFailure as error:
                if error.code != NOT_YET_INITIALIZED:
                    raise
                first = {"_id": REPLICA_SET, "version": 1, "members": [member]}
                client.admin.command("replSetInitiate", first)
            else:
                changed = {**found, "version": found["version"] + 1, "members": [member]}
                client.admin.command("replSetReconfig", changed, force=True)
            if not wait_until(lambda: client.admin.command("hello")["isWritablePrimary"], 30):
                raise self._failure()

    def _client(self) -> MongoClient[dict[str, Any]]:
        return MongoClient(
            "127.0.0.1", self.port, directConnection=True, serverSelectionTimeoutMS=10_000
        )

    def _failure(self) -> ConfigError:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        full = [line for line in lines if "no space left" in line.lower() or "disk is full" in line]
        if full:
            return ConfigError(
                f"GREENLINE_DATA: no space left on device under {self.folder}; "
                "set GREENLINE_DATA to another folder, or MONGODB_URI to a MongoDB of yours"
            )
        why = lines[-1] if lines else "it said nothing"
        return ConfigError(
            f"MONGODB_URI: {self.name} does not start: {why}; set it to a MongoDB of yours"
        )


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Give a free port, for a ``with`` block in which a server begins to listen there."""
    with socket.socket() as kept:
        # A server takes seconds to start. Bound and not listening: it may listen there all the
        # same, and the kernel gives the port to no other program.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]

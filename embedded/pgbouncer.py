"""
Run a pgbouncer before a Postgres of ours: the installed one, else Debian's.

As root it runs as the user that Postgres has, since it refuses root, too.
"""

import shutil
import socket
import tempfile
from pathlib import Path

from embedded import debian
from embedded.account import Account, account
from embedded.postgres import PORT, TMP, Postgres
from embedded.process import Child, listens, run, wait_until
from greenline.errors import ConfigError

START_TIMEOUT_S = 20


class Pgbouncer:
    """
    A pgbouncer before *server* that pools transactions, in *pool_size* connections.

    :param user: the one that it logs in as, for all clients. Default None: the client's.
    """

    def __init__(self, server: Postgres, pool_size: int, user: str | None = None) -> None:
        self._server = server
        self._pool_size = pool_size
        self._user = user
        self._child = Child("pgbouncer")
        self._folder: Path | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The address for the service."""
        return f"postgresql://greenline@127.0.0.1:{self.port}/greenline"

    def start(self) -> None:
        """
        Start, and return when it listens.

        Raises:
            ConfigError: there is none, and none can be had; or it does not start.
        """
        program, env = debian.program("pgbouncer")
        folder = self._folder = Path(tempfile.mkdtemp(prefix="greenline-pgbouncer-", dir=TMP))
        try:
            folder.chmod(0o755)
            user = account()
            if not user.can("-x", program):
                program, env = _copied(program, folder / "copy")
            self._launch([program, self._configured(folder)], env, user, folder / "log")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it; stop a stopped one and nothing happens."""
        self._child.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    def __enter__(self) -> "Pgbouncer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Pgbouncer pid={self._child.pid} port={self.port} pool_size={self._pool_size}>"

    def _configured(self, folder: Path) -> Path:
        """Write what it reads into *folder*, and return the file to begin with."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        users, ini = folder / "users", folder / "ini"
        users.write_text('"greenline" ""\n')
        login = f" user={self._user}" if self._user else ""
        sockets = Path(self._server.socket).parent
        ini.write_text(
            f"[databases]\ngreenline = host={sockets} port={PORT} pool_size={self._pool_size}"
            f"{login}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {users}\npool_mode = transaction\n"
            "max_client_conn = 1000\n"
        )
        return ini

    def _launch(
        self, command: list[str | Path], env: dict[str, str], user: Account, log: Path
    ) -> None:
        with log.open("wb") as output:
            self._child.start(command, user.become, output, env)
        wait_until(lambda: listens(self.port) or not self._child.alive(), START_TIMEOUT_S)
        if not self._child.alive() or not listens(self.port):
            said = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise ConfigError(f"pgbouncer does not start: {said[-1]}")


def _copied(program: Path, target: Path) -> tuple[Path, dict[str, str]]:
    """Copy the unpacked one to where the other user reaches it."""
    shutil.copytree(program.parents[2], target, symlinks=True)
    run(["chmod", "-R", "u=rwX,go=rX", target])
    return target / "usr/sbin/pgbouncer", debian.environment(target)

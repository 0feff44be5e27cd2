"""Run a redis-server of Debian's, for tests: it keeps nothing on the disk."""

import shutil
import socket
import tempfile
from pathlib import Path

from embedded import debian
from embedded.postgres import TMP
from embedded.process import Child, listens, wait_until
from greenline.errors import ConfigError

START_TIMEOUT_S = 20


class Redis:
    """A redis-server on a free port of 127.0.0.1, which it keeps when it is started again."""

    def __init__(self) -> None:
        self._child = Child("redis")
        self._folder: Path | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    def start(self) -> None:
        """
        Start, and return when it listens.

        :raises ConfigError: no redis-server can be fetched, or it does not start.
        """
        unpacked = debian.unpacked("redis-tools")
        folder = self._folder = Path(tempfile.mkdtemp(prefix="greenline-redis-", dir=TMP))
        try:
            # One program with three names, of which this one serves.
            program = folder / "redis-server"
            program.symlink_to(unpacked / "usr/bin/redis-check-rdb")
            log = folder / "log"
            command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
            with log.open("wb") as output:
                self._child.start(command, output=output, env=debian.environment(unpacked))
            wait_until(lambda: listens(self.port) or not self._child.alive(), START_TIMEOUT_S)
            if not self._child.alive() or not listens(self.port):
                lines = log.read_text(errors="replace").strip().splitlines()
                raise ConfigError(f"redis does not start: {(lines or ['no output'])[-1]}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it, if it runs."""
        self._child.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    def __enter__(self) -> "Redis":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Redis pid={self._child.pid} port={self.port}>"

"""
Run an nginx: the installed one, else Debian's, unpacked.

As root its workers run as the user that the configuration names, as anywhere; else as ourselves.
"""

import shutil
import signal
import tempfile
from pathlib import Path

from embedded import debian
from embedded.postgres import TMP
from embedded.process import Child, listens, wait_until
from greenline.errors import ConfigError

START_TIMEOUT_S = 20
# Where Debian's build puts what it cannot keep in memory: a folder of root's.
TEMPORARY = "client_body", "proxy", "fastcgi", "uwsgi", "scgi"


class Nginx:
    """An nginx with the configuration *text*, in which ``{folder}`` is a folder of its own."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._child = Child("nginx", signal.SIGQUIT)
        self.folder = Path()

    def start(self, port: int) -> None:
        """
        Start, and return when it listens on *port* of 127.0.0.1.

        Raises:
            ConfigError: there is none, and none can be had; or it does not start.
        """
        command, env = debian.program("nginx")
        self.folder = Path(tempfile.mkdtemp(prefix="greenline-nginx-", dir=TMP))
        try:
            self.folder.chmod(0o755)
            log = self.folder / "error.log"
            places = "".join(f"{name}_temp_path {self.folder}/{name}; " for name in TEMPORARY)
            text = self._text.replace("{folder}", str(self.folder))
            (self.folder / "nginx.conf").write_text(text.replace("http {", f"http {{ {places}", 1))
            with (self.folder / "said").open("wb") as said:
                self._child.start(
                    [
                        command,
                        "-p",
                        self.folder,
                        "-e",
                        log,
                        "-c",
                        "nginx.conf",
                        "-g",
                        "daemon off;",
                    ],
                    output=said,
                    env=env,
                )
            wait_until(lambda: listens(port) or not self._child.alive(), START_TIMEOUT_S)
            if not self._child.alive() or not listens(port):
                lines = (self.folder / "said").read_text().strip().splitlines()
                raise ConfigError(f"nginx does not start: {(lines or ['it said nothing'])[-1]}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it when it has answered; stop a stopped one and nothing happens."""
        self._child.stop()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

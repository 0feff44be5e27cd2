"""The steps of docs/migrate.md, and a shell into which they are typed."""

import os
import re
import subprocess
from pathlib import Path

from markdown_it import MarkdownIt

from embedded import cluster
from embedded.account import Account
from tests.helpers.pages import read
from tests.helpers.support import START_LIMIT_S, free_port, wait_until

PAGE = read("docs/migrate.md")
OLD, NEW = "8000", "8001"
LISTENING = re.compile(
    r"^\S*.*(?:gunicorn .*-b|uwsgi .*--http-socket) 127\.0\.0\.1:(\d+)", re.MULTILINE
)
TIMES = re.compile(r"^\[[^\]]+\] \[\d+\] ", re.MULTILINE)  # and process ids, of a log
MARK = "--- done ---"


def blocks_of(step: int) -> list[tuple[str, str]]:
    """Return the kind and the text of each block of a step; 0 are those before the first."""
    before, *steps = re.split(r"^### \d+\. ", PAGE.partition("\n## What changes")[0], flags=re.M)
    tokens = MarkdownIt().parse([before, *steps][step])
    return [(token.info, token.content) for token in tokens if token.type == "fence"]


def warnings_of(log: Path) -> list[str]:
    """Return the warnings of a log, less those that a busy machine causes by itself."""
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if "WARNING" in line and "the hub was" not in line]


class Terminal:
    """
    A shell in *folder* into which the page is typed, with two ports of its own.

    :param environ: its variables; ``psql`` is found in any case.
    """

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self.ports = {OLD: str(free_port()), NEW: str(free_port())}
        psql = cluster.binaries(Account(os.geteuid(), os.getegid()))
        self._shell = subprocess.Popen(
            ["sh"],
            cwd=folder,
            env={**environ, "PATH": f"{environ['PATH']}{os.pathsep}{psql}"},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def type(self, text: str) -> str:
        """Type *text* and return what is printed; wait for the servers that it starts."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        for shown, port in self.ports.items():
            text = text.replace(f":{shown}", f":{port}").replace(f"in {OLD} {NEW};", self._both)
        self._shell.stdin.write(f"{text}\necho '{MARK}'\n")
        self._shell.stdin.flush()
        printed = "".join(iter(self._shell.stdout.readline, f"{MARK}\n"))
        for port in LISTENING.findall(text):
            wait_until(lambda port=port: self._answers(port), f"a server on {port}", START_LIMIT_S)
        return printed

    def close(self) -> None:
        """End the servers and the shell."""
        self.type("kill -INT $old $new 2> /dev/null; wait $old $new")
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(timeout=60)

    @property
    def _both(self) -> str:
        return f"in {self.ports[OLD]} {self.ports[NEW]};"

    def _answers(self, port: str) -> bool:
        asked = ["curl", "-s", "-o", os.devnull, f"127.0.0.1:{port}/"]
        return subprocess.run(asked, check=False).returncode == 0

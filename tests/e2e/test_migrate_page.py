"""docs/migrate.md: each step, typed into a shell, prints what the page says."""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from embedded import cluster, debian
from embedded.account import Account
from embedded.nginx import Nginx
from embedded.pgbouncer import Pgbouncer
from embedded.postgres import Postgres, temporary
from greenline.errors import ConfigError
from tests.e2e.hosting import NO_CONFIG, WORKER, accepts
from tests.helpers.pages import read, write_example
from tests.helpers.support import BIN, CHECKOUT, environ, free_port, run, service, wait_until
from tests.helpers.wheel import Environment, build

PAGE = read("docs/migrate.md")
OLD, NEW = "8000", "8001"
INSTALL = "pip install ../greenline\n"  # test_examples.py runs it
TIMES = re.compile(r"^\[[^\]]+\] \[\d+\] ", re.MULTILINE)
MARK = "--- done ---"


def blocks_of(step: int) -> list[tuple[str, str]]:
    """Return the kind and the text of each block of a step; 0 are those before the first."""
    before, *steps = re.split(r"^### \d+\. ", PAGE.partition("\n## What changes")[0], flags=re.M)
    tokens = MarkdownIt().parse([before, *steps][step])
    return [(token.info, token.content) for token in tokens if token.type == "fence"]


class Terminal:
    """
    A shell in *folder* into which the page is typed, with two ports of its own.

    :param environ: its variables.
    """

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self.ports = {OLD: str(free_port()), NEW: str(free_port())}
        self._shell = subprocess.Popen(
            ["sh"], cwd=folder, env=environ, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def type(self, text: str) -> str:
        """Type *text* and return what is printed; wait for the servers that it starts."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        for shown, port in self.ports.items():
            text = text.replace(f":{shown}", f":{port}").replace(f"in {OLD} {NEW};", self._both)
        self._shell.stdin.write(f"{text}\necho '{MARK}'\n")
        self._shell.stdin.flush()
        printed = "".join(iter(self._shell.stdout.readline, f"{MARK}\n"))
        for port in re.findall(r"^\S*.*gunicorn .*-b 127\.0\.0\.1:(\d+)", text, re.MULTILINE):
            wait_until(lambda port=port: self._answers(port), f"a server on {port}")
        return printed

    def close(self) -> None:
        """End the servers and the shell."""
        self.type("kill $old $new 2> /dev/null; wait $old $new")
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(timeout=60)

    @property
    def _both(self) -> str:
        return f"in {self.ports[OLD]} {self.ports[NEW]};"

    def _answers(self, port: str) -> bool:
        asked = ["curl", "-s", "-o", os.devnull, f"127.0.0.1:{port}/"]
        return subprocess.run(asked, check=False).returncode == 0


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A Postgres of a hundred connections that nobody else has."""
    with temporary(100) as server:
        yield server


@pytest.fixture
def terminal(tmp_path: Path, server: Postgres) -> Iterator[Terminal]:
    """A shell in the folder of the page's application, in an environment that has it."""
    wheel = build(tmp_path / "wheel")
    wanted = ["greenline", "flask", "psycopg2-binary"]
    environment = Environment(tmp_path / "venv", wheel, wanted)
    pip = environment.bin / "pip"
    pip.write_text(f'#!/bin/sh\nexec {BIN}/python -m pip --python {environment.bin}/python "$@"\n')
    pip.chmod(0o755)
    psql = cluster.binaries(Account(os.geteuid(), os.getegid()))
    folder = tmp_path / "orders"
    folder.mkdir()
    write_example("docs/migrate.md", "orders.py", folder)
    typed = environment.environ({"DATABASE_URL": server.url})
    typed["PATH"] += f"{os.pathsep}{psql}"
    terminal = Terminal(folder, typed)
    try:
        yield terminal
    finally:
        terminal.close()


def test_the_steps_are_ten_and_each_says_how_to_go_back() -> None:
    """Each has a command, what it prints, and a way back."""
    steps = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    assert [step.partition(".")[0] for step in steps] == [str(number) for number in range(1, 11)]
    assert [step.partition("\n")[0] for step in steps if "\n*Back:* " not in step] == []
    kinds = [{kind for kind, _ in blocks_of(number)} for number in range(1, 11)]
    assert kinds == [{"sh", "text"}] * 10


def test_each_step_prints_what_the_page_says(terminal: Terminal, server: Postgres) -> None:
    """From the install to the end of the old server, in one shell."""
    ((_, _program), (_, table)) = blocks_of(0)
    assert terminal.type(table) == ""

    (_, install), (_, printed) = blocks_of(1)
    assert install.startswith(INSTALL)
    assert terminal.type(install.removeprefix(INSTALL)) == printed

    (_, start), (_, ask), (_, printed) = blocks_of(2)
    assert terminal.type(start) == ""
    assert terminal.type(ask) == printed

    (_, start), (_, logged) = blocks_of(3)
    terminal.type(start)
    new_log = terminal.folder / "new.log"
    log = new_log.read_text()
    lines = {re.sub(r"\d+$", "", line) for line in TIMES.sub("", log).splitlines()}
    shown = [re.sub(r"\d+$", "", line.removeprefix("[INFO] ")) for line in logged.splitlines()]
    assert {line.removeprefix("[INFO] ") for line in lines} >= set(shown)
    assert log.count("Booting worker") == logged.count("Booting worker")

    (_, typed), (_, printed) = blocks_of(4)
    warned = terminal.type(typed)
    warnings = [line for line in new_log.read_text().splitlines() if "WARNING" in line]
    # A busy machine makes the hub late.
    assert int(printed) == len([line for line in warnings if "the hub was" not in line]), warnings
    assert int(warned) <= len(warnings)

    for number in (5, 6):
        (_, typed), (_, printed) = blocks_of(number)
        assert terminal.type(typed) == printed, number

    (_, budget), _, (_, export) = blocks_of(7)
    assert "a worker's pool" in terminal.type(budget)
    address, count = re.subn(r"=\S+", f"='{server.url}'", export)
    assert (count, terminal.type(address)) == (1, "")

    (_, start), (_, sum_), (_, ask), (_, printed) = blocks_of(8)
    assert terminal.type(start) == sum_
    (host,) = re.findall(r"Postgres: (\d+) connections", sum_)
    for text in (terminal.type(ask), printed):
        during, answers, after = text.splitlines()
        assert answers.split() == ["50", "200"]
        assert 2 < int(during) <= int(host)
        assert 2 < int(after) <= int(host)

    (_, start), (_, ask), (_, printed) = blocks_of(9)
    assert terminal.type(start) == ""
    assert terminal.type(ask) == printed

    *_, (_, end) = blocks_of(10)
    terminal.type(f"{end}wait $old")
    assert "Shutting down" in (terminal.folder / "old.log").read_text()
    assert terminal.type("curl -s 127.0.0.1:8001/orders") == '{"orders":50}\n'
    assert "uninstalled" in terminal.type("yes | pip uninstall greenline")


def test_the_budget_says_that_there_is_a_pgbouncer(server: Postgres) -> None:
    """Step 7: by the line that the page has."""
    (_, typed), (_, printed), _ = blocks_of(7)
    try:
        with Pgbouncer(server, 4) as pgbouncer:
            done = run(typed.split(), {"DATABASE_URL": pgbouncer.url}, check=False)
    except ConfigError as error:
        pytest.skip(str(error))
    assert done.returncode == 1
    assert printed.strip() in done.stderr


def test_nginx_moves_a_tenth_of_the_traffic(server: Postgres, tmp_path: Path) -> None:
    """Step 10: both commands print what the page says, and of a hundred requests ten are ours."""
    (_, upstream), (_, typed), (_, printed), _ = blocks_of(10)
    write_example("docs/migrate.md", "orders.py", tmp_path)
    more = {"DATABASE_URL": server.url, "PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"}
    port = free_port()
    with (
        service(more, "-k", "gthread", target="orders:app", config=NO_CONFIG, wait=False) as old,
        service(more, *WORKER, target="orders:app", config=NO_CONFIG, wait=False) as new,
    ):
        for each in (old, new):
            wait_until(lambda each=each: accepts(each), "a server")
        upstream = upstream.replace(OLD, str(old.port)).replace(NEW, str(new.port))
        nginx = Nginx(
            f"worker_processes 1; pid {{folder}}/pid;\nevents {{ }}\nhttp {{ access_log off;\n"
            f"{upstream}server {{ listen 127.0.0.1:{port}; location / {{"
            " proxy_pass http://application; add_header Served-By $upstream_addr always; } } }\n"
        )
        try:
            nginx.start(port)
        except ConfigError as error:
            pytest.skip(str(error))
        try:
            command, env = debian.program("nginx")
            script = tmp_path / "nginx"
            folder = nginx.folder
            script.write_text(
                f'#!/bin/sh\nexec {command} -p {folder} -e {folder}/error.log -c nginx.conf "$@"\n'
            )
            script.chmod(0o755)
            done = subprocess.run(
                ["sh", "-ec", typed],
                env=environ({**env, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}),
                capture_output=True,
                text=True,
                timeout=60,
            )
            said = done.stderr.replace(str(folder), "/etc/nginx")
            assert (done.returncode, done.stdout) == (0, "")
            assert printed in said
            front = type(old)(old.process, port, old.log_file)
            served = Counter(front.get("/none").headers["Served-By"] for _ in range(100))
        finally:
            nginx.stop()
    assert served == {f"127.0.0.1:{old.port}": 90, f"127.0.0.1:{new.port}": 10}

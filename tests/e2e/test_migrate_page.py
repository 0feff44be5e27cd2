"""docs/migrate.md: each step, typed into a shell, prints what the page says."""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embedded import debian
from embedded.nginx import Nginx
from embedded.pgbouncer import Pgbouncer
from embedded.postgres import Postgres, temporary
from greenline.errors import ConfigError
from greenline.http.gunicorn_compat import VERSION
from tests.e2e.hosting import NO_CONFIG, WORKER
from tests.e2e.migrate_page import NEW, OLD, PAGE, TIMES, Terminal, blocks_of, warnings_of
from tests.helpers.pages import write_example
from tests.helpers.processes import children, lives, pid_in
from tests.helpers.support import (
    BIN,
    CHECKOUT,
    START_LIMIT_S,
    environ,
    free_port,
    run,
    service,
    wait_until,
)
from tests.helpers.wheel import Environment, build

INSTALL = "pip install ../greenline\n"  # test_examples.py runs it


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A Postgres of a hundred connections that nobody else has."""
    with temporary(100) as server:
        yield server


@pytest.fixture
def terminal(tmp_path: Path, server: Postgres) -> Iterator[Terminal]:
    """A shell in the folder of the page's application, in an environment that has it."""
    wheel = build(tmp_path / "wheel")
    wanted = ["greenline[doctor]", "flask", "psycopg2-binary"]
    environment = Environment(tmp_path / "venv", wheel, wanted)
    pip = environment.bin / "pip"
    pip.write_text(f'#!/bin/sh\nexec {BIN}/python -m pip --python {environment.bin}/python "$@"\n')
    pip.chmod(0o755)
    folder = tmp_path / "orders"
    folder.mkdir()
    write_example("docs/migrate.md", "orders.py", folder)
    terminal = Terminal(folder, environment.environ({"DATABASE_URL": server.url}))
    try:
        yield terminal
    finally:
        terminal.close()


def test_the_steps_are_ten_and_each_says_how_to_go_back() -> None:
    """After the doctor, each has a command, what it prints, and a way back."""
    assert blocks_of(0)[0] == ("sh", "greenline doctor orders:app\n")
    steps = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    assert [step.partition(".")[0] for step in steps] == [str(number) for number in range(1, 11)]
    assert [step.partition("\n")[0] for step in steps if "\n*Back:* " not in step] == []
    kinds = [{kind for kind, _ in blocks_of(number)} for number in range(1, 11)]
    assert kinds == [{"sh", "text"}] * 10


def test_each_step_prints_what_the_page_says(terminal: Terminal, server: Postgres) -> None:
    """From the install to the end of the old server, in one shell."""
    (_, ask), (_, printed), (_, _program), (_, table) = blocks_of(0)
    assert terminal.type(ask) == printed
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
    warnings = warnings_of(new_log)
    assert int(printed) == len(warnings), warnings
    assert int(warned) >= len(warnings)

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


@pytest.mark.parametrize(
    ("passed", "arguments"),
    [
        pytest.param("proxy_pass http://application;", (), id="http"),
        pytest.param(
            "uwsgi_pass application; uwsgi_param REQUEST_METHOD $request_method;"
            " uwsgi_param PATH_INFO $document_uri; uwsgi_param QUERY_STRING $query_string;"
            " uwsgi_param SERVER_PROTOCOL $server_protocol;",
            ("--protocol", "uwsgi"),
            marks=pytest.mark.skipif(VERSION < (24,), reason="gunicorn 23 has no such protocol"),
            id="uwsgi",
        ),
    ],
)
def test_nginx_moves_a_tenth_of_the_traffic(
    server: Postgres, tmp_path: Path, passed: str, arguments: tuple[str, ...]
) -> None:
    """Step 10: both commands print what the page says, and of a hundred requests ten are ours."""
    (_, upstream), (_, typed), (_, printed), _ = blocks_of(10)
    write_example("docs/migrate.md", "orders.py", tmp_path)
    more = {"DATABASE_URL": server.url, "PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"}
    hosted: dict[str, Any] = {"target": "orders:app", "config": NO_CONFIG, "wait": False}
    port = free_port()
    with (
        service(more, "-k", "gthread", *arguments, **hosted) as old,
        service(more, *WORKER, *arguments, **hosted) as new,
    ):
        for each in (old, new):
            wait_until(lambda each=each: "Booting worker" in each.log, "a server", START_LIMIT_S)
        upstream = upstream.replace(OLD, str(old.port)).replace(NEW, str(new.port))
        nginx = Nginx(
            f"worker_processes 1; pid {{folder}}/pid;\nevents {{ }}\nhttp {{ access_log off;\n"
            f"{upstream}server {{ listen 127.0.0.1:{port}; location / {{"
            f" {passed} add_header Served-By $upstream_addr always; }} }} }}\n"
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
            master = wait_until(lambda: pid_in(folder / "pid"), "nginx's pid")
            before = wait_until(lambda: children(master), "a worker of nginx")
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
            # Each worker of nginx has a count of its own, and both serve while it reloads.
            wait_until(lambda: not any(map(lives, before)), "the reload")
            front = type(old)(old.process, port, old.log_file)
            answers = [front.get("/none") for _ in range(100)]
        finally:
            nginx.stop()
    assert {answer.status for answer in answers} == {404}
    served = Counter(answer.headers["Served-By"] for answer in answers)
    assert served == {f"127.0.0.1:{old.port}": 90, f"127.0.0.1:{new.port}": 10}

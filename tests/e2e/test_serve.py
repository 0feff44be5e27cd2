"""``make serve`` as a newcomer meets it: it starts, tells, stops, and says what is wrong."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg2
import pytest

from embedded import store
from embedded.postgres import Postgres, temporary
from embedded.serve import NO_MONGODB
from tests.helpers.forms import in_the_long_form, some
from tests.helpers.processes import stat
from tests.helpers.support import CHECKOUT, IS_LONG, environ, free_port, wait_until

# The first one is what the short form sends; other tests send SIGINT and SIGTERM.
SIGNALS = [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]
CHILDREN = ["-m gunicorn", "cluster_name", "secantus"]
MOMENTS = ["flask", "initdb", "--single", "cluster_name", "secantus"]
START_LIMIT_S = 120
STOP_LIMIT_S = 60
SERVE = (sys.executable, "-m", "embedded.serve")
# A line of the log; the access log's times are in the Common Log Format.
TIME = r"\[(\d{4}-\d\d-\d\d|\d\d/\w{3}/\d{4}:)\s?\d\d:\d\d:\d\d [+-]\d{4}\]"
LOGGED = re.compile(TIME + r" (\[\d+\] )?\[(\x1b\[\d+m)?[A-Z]+(\x1b\[0m)?\] ")
READY = "Ctrl-C stops it"  # the last line of the banner


class Run:
    """A ``serve`` on a data folder of its own, and everything that it started."""

    def __init__(self, data: Path, more: Mapping[str, str], command: tuple[str, ...]) -> None:
        self.data = data
        self.port = free_port()
        self.output_file = Path(tempfile.mkstemp(prefix="greenline-serve-")[1])
        mine = {"GREENLINE_DATA": str(data), "PORT": str(self.port), **more}
        with self.output_file.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=environ(mine),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.output_file.read_text(errors="replace")

    def ended(self) -> bool:
        return self.process.poll() is not None

    def ready(self) -> "Run":
        """Wait until it has printed how to use it."""
        wait_until(lambda: READY in self.output or self.ended(), "serve", START_LIMIT_S)
        assert READY in self.output, self.output
        return self

    def status(self) -> int:
        """Wait for its end and return the exit status."""
        wait_until(self.ended, f"serve to end: {self.output}", STOP_LIMIT_S)
        return int(self.process.returncode)

    def processes(self) -> dict[int, str]:
        """Return all processes that it started, by the data folder in their environment."""
        return dict(started_with(f"GREENLINE_DATA={self.data}"))

    def cpu_s(self) -> float:
        """Return the CPU time that they have taken, however busy the machine is."""
        ticks = sum(sum(map(int, stat(pid)[11:15])) for pid in self.processes())
        return ticks / os.sysconf("SC_CLK_TCK")

    def find(self, wanted: str) -> list[int]:
        """Return those of its processes with *wanted* in their arguments, the oldest first."""
        found = [pid for pid, arguments in self.processes().items() if wanted in arguments]
        stats = {pid: fields for pid in found if (fields := stat(pid))}
        # By the time of the start: process ids begin anew at some point.
        return sorted(stats, key=lambda pid: int(stats[pid][19]))

    def sockets(self) -> Path:
        return Path((self.data / "postgres" / "sockets").read_text())

    def curls(self) -> list[str]:
        """Return the curl lines, each after the line that sets the key, as they are printed."""
        found = re.findall(r"^ +(curl .+)$", self.output, re.MULTILINE)
        return [f"{self.key_line()}{line}" for line in found]

    def key_line(self) -> str:
        found = re.search(r"^ +KEY=gl_[\w-]+\n", self.output, re.MULTILINE)
        return found[0].lstrip() if found else ""

    def authorization(self) -> str:
        """Return the header that the curl lines have."""
        key = self.key_line().strip().removeprefix("KEY=")
        assert key, self.output
        return f"Authorization: Bearer {key}"

    def assert_nothing_left(self) -> None:
        assert self.processes() == {}
        assert list(self.data.rglob("sockets")) == []
        assert list(self.data.rglob("postmaster.pid")) == []

    def end(self) -> None:
        """End what a failed or killing test left, sockets included."""
        # One that is in a system call still writes into the folder, which the test removes next.
        wait_until(lambda: not self._kill(), "all of it to end", STOP_LIMIT_S)
        self.process.wait(timeout=60)
        for note in self.data.rglob("sockets"):
            shutil.rmtree(note.read_text(), ignore_errors=True)
        self.output_file.unlink()

    def _kill(self) -> dict[int, str]:
        found = self.processes()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found


def started_with(variable: str) -> Iterator[tuple[int, str]]:
    """Yield the processes that have *variable* in their environment, and their arguments."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It ended meanwhile, or is somebody else's.
            if variable in (entry / "environ").read_text(errors="replace").split("\0"):
                yield int(entry.name), (entry / "cmdline").read_text().replace("\0", " ")


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder for the data with a blank in its name."""
    path = Path(tempfile.mkdtemp(prefix="greenline data "))
    yield path
    shutil.rmtree(path, ignore_errors=True)
    store.remove_under(path)


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """The data folder of a ``serve`` that has started once and was stopped."""
    path = Path(tempfile.mkdtemp(prefix="greenline-made-"))
    with serve(path) as run:
        run.ready().process.terminate()
        assert run.status() == 0
    yield path
    shutil.rmtree(path, ignore_errors=True)
    store.remove_under(path)


@pytest.fixture
def used(data: Path, made: Path) -> Path:
    """A copy of it, from which ``serve`` starts in half the time."""
    # It may lie outside, with Postgres's user as its owner: embedded/store.py.
    subprocess.run(["cp", "-aL", f"{made}/.", data], check=True)
    return data


@contextmanager
def serve(data: Path, *command: str, **more: str) -> Iterator[Run]:
    """Start ``serve``, and end whatever is left of it."""
    run = Run(data, more, command or SERVE)
    try:
        yield run
    finally:
        run.end()


def fails_with(data: Path, **more: str) -> str:
    """Run a ``serve`` that must fail and leave nothing; return its one line."""
    with serve(data, **more) as run:
        assert run.status() == 1, run.output
        run.assert_nothing_left()
        lines = [line for line in run.output.splitlines() if line.startswith("serve: ")]
        assert run.output.splitlines()[-1] == lines[-1]
        assert "Traceback" not in run.output
        return lines[-1]


def test_the_printed_curl_lines_work_and_the_data_outlive_a_restart(data: Path) -> None:
    """
    What a newcomer copies from the screen is answered, and is there after a second start.

    Each start prints a key of its own; the one before does not work any more, and no file has it.
    """
    with serve(data) as run:
        old = run.ready().authorization()
        curls = run.curls()
        assert len(curls) == 3
        # Twice in a row.
        answers = [_shell(f"{line} -s -w '%{{http_code}}'") for line in curls * 2]
        assert [answer[-3:] for answer in answers] == ["200", "200", "201"] * 2
        book = re.search(r'"id":(\d+)', answers[-1])
        assert book
        run.process.terminate()
        assert run.status() == 0
        run.assert_nothing_left()
    with serve(data) as again:
        new = again.ready().authorization()
        assert again.cpu_s() < 10
        address = f"http://127.0.0.1:{again.port}/books/{book[1]}"
        assert "The Dispossessed" in _shell(f"curl -s -H '{new}' {address}")
        ask = f"curl -s -o /dev/null -w '%{{http_code}}' {address}"
        assert _shell(ask) == "401"
        assert _shell(f"{ask} -H '{old}'") == "401"
        again.process.terminate()
        assert again.status() == 0
    for secret in (old[-43:], new[-43:]):
        found = subprocess.run(["grep", "-rlF", "-e", secret, str(data)], capture_output=True)
        assert found.stdout == b""


@pytest.mark.parametrize(
    "is_wanted", some([False, True]), ids=some(["MONGODB_URI=off", "no wheel"])
)
def test_without_mongodb_postgres_is_served(is_wanted: bool, used: Path, tmp_path: Path) -> None:
    """
    One line says why there is none; ready, and without what MongoDB holds. With AUTH=off no key is
    made: the curl lines are shorter, and answered all the same.
    """
    if is_wanted and shutil.which("mongod"):
        pytest.skip("mongod is taken")
    hidden = 'import sys; sys.modules["secantus"] = None'  # as if it were not installed
    (tmp_path / "sitecustomize.py").write_text(hidden)
    more = {"PYTHONPATH": str(tmp_path)} if is_wanted else {"MONGODB_URI": "off"}
    why = NO_MONGODB if is_wanted else "none (MONGODB_URI=off)"
    with serve(used, AUTH="off", **more) as run:
        assert f"MongoDB   {why}\n" in run.ready().output
        assert "AUTH=off" in run.output
        assert "Authorization" not in run.output
        assert _shell(f"{run.curls()[0]} -s -o /dev/null -w '%{{http_code}}'") == "200"
        base = f"http://127.0.0.1:{run.port}"
        asked = f"curl -s -o /dev/null -w '%{{http_code}}' {base}"
        assert [_shell(f"{asked}/{what}") for what in ("readyz", "books", "states")] == [
            "200", "200", "404",
        ]  # fmt: skip


def test_it_tells_what_runs_and_a_second_one_on_the_same_data_is_refused(used: Path) -> None:
    """The first screen answers what a newcomer asks: which servers, how many connections."""
    with serve(used) as run:
        printed = run.ready().output
        assert "\x1b" not in printed  # no terminal, no colours
        assert re.search(r"Postgres +18\.\d+, embedded", printed)
        assert re.search(r"MongoDB +(SecantusDB|mongod) \S+, embedded", printed)
        assert re.search(r"Postgres: \d+ connections a host, \d+ in a worker's pool", printed)
        assert re.search(r"MongoDB: \d+ connections a host, \d+ in a worker's pool", printed)
        psql = re.search(r"^ +(\S*psql '.+')$", printed, re.MULTILINE)
        assert psql
        assert "1000" in _shell(f"{psql[1]} -Atc 'select count(*) from books'")
        link = re.search(r"http://127\.0\.0\.1:\d+/metrics$", printed, re.MULTILINE)
        assert link
        assert 'greenline_pool_connections{pool="postgres"' in _shell(f"curl -s {link[0]}")
        page = re.search(r"^  open (http://127\.0\.0\.1:\d+/)$", printed, re.MULTILINE)
        assert page
        assert "<title>Greenline</title>" in _shell(f"curl -s {page[1]}")
        top = re.search(r"^  (\S*greenline top)$", printed, re.MULTILINE)
        assert top
        # Other tests beside this one may run gunicorn as well: then it names them.
        shown = _shell(f"{top[1]} --once 2>&1; true")
        assert "Greenline" in shown or "several run on this host" in shown
        # One folder serves once; the first run goes on undisturbed.
        with serve(used) as second:
            assert second.status() == 1
            assert re.search("^serve: GREENLINE_DATA: .* is in use", second.output, re.M)
            assert _shell(run.curls()[0] + " -s -o /dev/null -w '%{http_code}'") == "200"
            assert not run.ended()


def test_a_terminal_shows_a_short_log_and_the_banner_last(used: Path) -> None:
    """Each line has a time and a level; the key and the page to open are easy to find."""
    # Without the watchdog: its warnings on a busy machine have a stack of several lines.
    more = {"TERM": "xterm", "GREENLINE_BLOCKED_HUB_MS": "0"}
    with serve(used, "script", "-qec", shlex.join(SERVE), "/dev/null", **more) as run:
        log, _, banner = run.ready().output.replace("\r\n", "\n").partition("\n\n")
        lines = log.splitlines()
        assert [line for line in lines if not LOGGED.match(line)] == []
        # A busy machine adds warnings, and asks more often.
        lines = [line for line in lines if "[INFO]" in line and "GET /readyz" not in line]
        steps = [line for line in lines if re.search(r" serve: .+, about \d+ s$", line)]
        assert lines[:4] == steps
        assert len(lines) - len(steps) <= 10
        assert ["Listening at" in line for line in lines].index(True) < 10
        assert re.search(r"^  \x1b\[1mKEY=gl_[\w-]+\x1b\[0m$", banner, re.MULTILINE)
        page = f"http://127.0.0.1:{run.port}/"
        assert f"open \x1b[1m{page}\x1b[0m\n" in banner
        # One page to open, then the commands, and then the page that shows what they do.
        assert banner.index("KEY=") < banner.index(page) < banner.index("curl ")
        first, live = re.findall(r"http://\S+/(?=[\s\x1b]|$)", banner)
        assert first == page
        assert banner.index("curl ") < banner.index(live)
        assert 'href="docs"' in _shell(f"curl -sS {page}")


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 tries each signal")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_everything_in_order(number: signal.Signals, used: Path) -> None:
    """Ctrl-C, SIGTERM and a closed terminal end it with status 0 and leave nothing."""
    with serve(used) as run:
        sockets = run.ready().sockets()
        run.process.send_signal(number)
        assert run.status() == 0
        run.assert_nothing_left()
        assert not sockets.exists()
        assert "ended by itself" not in run.output


def test_the_service_stops_before_its_servers(used: Path) -> None:
    """A request in progress still has its Postgres: it is answered while all of it stops."""
    with serve(used, GREENLINE_DIAGNOSTICS="1") as run, ThreadPoolExecutor() as clients:
        sockets = run.ready().sockets()
        url = f"http://127.0.0.1:{run.port}/diagnostics/sleep?seconds=2"
        name, _, value = run.authorization().partition(": ")
        request = urllib.request.Request(url, headers={name: value})
        asked = clients.submit(urllib.request.urlopen, request, timeout=20)
        with closing(psycopg2.connect(f"postgresql://postgres@/greenline?host={sockets}")) as conn:
            conn.autocommit = True
            wait_until(lambda: _sleepers(conn) == 1, "the query to sleep")
        run.process.send_signal(signal.SIGTERM)
        with asked.result() as answer:
            assert answer.status == 200
        assert run.status() == 0


@in_the_long_form
def test_a_second_signal_while_stopping_leaves_nothing_either(used: Path) -> None:
    """An impatient second and third Ctrl-C do not interrupt the clean-up."""
    with serve(used) as run:
        run.ready().process.send_signal(signal.SIGINT)
        for _ in range(3):
            time.sleep(0.05)
            run.process.send_signal(signal.SIGINT)
        assert run.status() == 0
        run.assert_nothing_left()


@pytest.mark.parametrize("moment", some(MOMENTS))
def test_a_signal_during_the_start_stops_what_has_started(moment: str, data: Path) -> None:
    """Wherever the start is, SIGTERM ends it with status 0 and leaves nothing."""
    with serve(data) as run:
        wait_until(lambda: run.find(moment) or READY in run.output, moment)
        run.process.terminate()
        assert run.status() == 0, run.output
        run.assert_nothing_left()


@pytest.mark.parametrize("to_group", some([True, False]), ids=some(["Ctrl-C", "SIGTERM to make"]))
def test_make_serve_passes_the_signal_on(to_group: bool, used: Path) -> None:
    """Ctrl-C reaches make and serve alike; a SIGTERM of make alone is forwarded. With a cache."""
    with serve(used, "make", "serve", GREENLINE_CACHE_BYTES="64000000") as run:
        sockets = run.ready().sockets()
        assert "Cache-Status: greenline-" in _shell(f"{run.curls()[0]} -si")
        if to_group:
            os.killpg(run.process.pid, signal.SIGINT)
        else:
            run.process.terminate()
        run.status()
        run.assert_nothing_left()
        assert not sockets.exists()
        assert "serve: " not in run.output.partition(READY)[2]


@pytest.mark.parametrize("victim", some(CHILDREN))
def test_a_child_that_dies_ends_everything(victim: str, used: Path) -> None:
    """No half of the service runs on: it says which part ended, and exits with 1."""
    with serve(used) as run:
        os.kill(run.ready().find(victim)[0], signal.SIGKILL)
        assert run.status() == 1
        run.assert_nothing_left()
        assert re.search(
            "^serve: (gunicorn|Postgres|SecantusDB): ended by itself", run.output, re.M
        )


@in_the_long_form
def test_after_a_kill_the_next_start_works(used: Path) -> None:
    """
    The servers go with the process that started them; after kill -9 of every process the next start
    cleans up what was left.
    """
    with serve(used) as run, serve_again(used, run, [run.ready().process.pid]) as second:
        sockets = second.sockets()
        with serve_again(used, second, list(second.processes())) as third:
            assert not sockets.exists()
            third.process.terminate()
            assert third.status() == 0
            third.assert_nothing_left()


@contextmanager
def serve_again(data: Path, run: Run, victims: list[int]) -> Iterator[Run]:
    """Kill processes of *run* and start another one."""
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    run.status()
    with serve(data) as again:
        yield again.ready()


def test_dev_runs_one_worker(used: Path) -> None:
    """``make dev`` has one worker, whose pool is not divided."""
    with serve(used, *SERVE, "--dev", WEB_CONCURRENCY="4", LOG_LEVEL="debug") as run:
        assert "by 1 worker, " in run.ready().output
        assert len(run.find("-m gunicorn")) == 2


def test_a_taken_port_is_one_clear_line(data: Path) -> None:
    """Before anything starts, it says that PORT is taken and how to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = fails_with(data, PORT=str(port))
    assert line.startswith(f"serve: PORT: {port} is taken")
    assert not (data / "postgres").exists()


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        pytest.param("PORT", "80a", "PORT: '80a' is not a whole number", id="port-text"),
        pytest.param("PORT", "70000", "PORT: '70000' is not a whole number", id="port-range"),
        pytest.param(
            "DATABASE_URL",
            "postgresql://u:s3cret@127.0.0.1:1/x",
            'DATABASE_URL: cannot connect to "127.0.0.1", port 1: Connection refused',
            id="postgres-refused",
        ),
        pytest.param(
            "DATABASE_URL",
            "postgresql://u:s3cret/s3cret@127.0.0.1/x",
            "DATABASE_URL: not one that libpq can read",
            id="postgres-slash-in-password",
        ),
        pytest.param(
            "DATABASE_URL",
            "postgresql://u:p@s3cret@127.0.0.1:1/x",
            "DATABASE_URL: not one that libpq can read",
            id="postgres-at-in-password",
        ),
        pytest.param(
            "DATABASE_URL",
            "postgresql://u:s3cret@nowhere.invalid/x",
            "DATABASE_URL: the name of its host is not known",
            id="postgres-unknown-host",
        ),
        pytest.param(
            "DATABASE_URL",
            "mysql://u:s3cret@127.0.0.1/x",
            "DATABASE_URL: must begin with postgresql://",
            id="postgres-scheme",
        ),
        pytest.param(
            "MONGODB_URI",
            "mongodb://u:s3cret@127.0.0.1:1/x",
            "MONGODB_URI: cannot connect to 127.0.0.1:1: [Errno 111] Connection refused",
            id="mongodb-refused",
        ),
        pytest.param(
            "MONGODB_URI",
            "mongodb://u:s3cret/s3cret@127.0.0.1/x",
            "MONGODB_URI: not one that pymongo can read",
            id="mongodb-slash-in-password",
        ),
        pytest.param(
            "MONGODB_URI",
            "127.0.0.1:27017",
            "MONGODB_URI: must begin with mongodb://",
            id="mongodb-scheme",
        ),
        pytest.param("WEB_CONCURRENCY", "many", "WEB_CONCURRENCY: 'many' is not", id="workers"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(
    variable: str, value: str, expected: str, data: Path
) -> None:
    """It names the variable and what is wrong, shows no password, and leaves nothing running."""
    line = fails_with(data, **{variable: value})
    assert line.startswith(f"serve: {expected}")
    assert "s3cret" not in line


def test_a_wrong_postgres_password_is_one_clear_line(data: Path) -> None:
    """The server's message about the password is printed, the password is not."""
    with temporary() as server:
        _demand_password(server)
        line = fails_with(data, DATABASE_URL=server.url.replace("@", ":s3cret@", 1))
    assert line.startswith("serve: DATABASE_URL: cannot connect to ")
    assert "password authentication failed" in line
    assert "s3cret" not in line


def test_a_wrong_mongodb_password_is_one_clear_line(data: Path, mongo: object) -> None:
    """A user that the server refuses gets an error, without the password."""
    uri = getattr(mongo, "url").replace("mongodb://", "mongodb://nobody:s3cret@")  # noqa: B009
    line = fails_with(data, MONGODB_URI=uri)
    assert line.startswith("serve: MONGODB_URI: the server refuses: ")
    assert "s3cret" not in line


def test_your_own_servers_are_used_and_left_running(data: Path) -> None:
    """With DATABASE_URL set no other Postgres is started, and yours goes on afterwards."""
    with temporary() as server, serve(data, DATABASE_URL=server.url) as run:
        assert "yours (DATABASE_URL)" in run.ready().output
        assert not (data / "postgres").exists()
        run.process.terminate()
        assert run.status() == 0
        run.assert_nothing_left()
        assert server.alive()


def test_a_data_folder_that_is_a_file_is_one_clear_line(data: Path) -> None:
    """A file where the folder should be is named."""
    file = data / "file"
    file.touch()
    with serve(file) as run:
        assert run.status() == 1
        assert run.output.startswith(f"serve: GREENLINE_DATA: {file} is not a folder")


def test_an_unwritable_data_folder_is_one_clear_line() -> None:
    """A folder that cannot be made is named, with the reason."""
    folder = Path(f"/proc/greenline-{os.getpid()}")  # Ours alone: it distinguishes the runs.
    with serve(folder) as run:
        assert run.status() == 1
        assert run.output.startswith(f"serve: GREENLINE_DATA: {folder}: ")
        assert run.output.endswith("; set GREENLINE_DATA to a folder that you can write to\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
@pytest.mark.parametrize("size", some(["41m", "1m", "20m", "46m"], 2))
def test_a_full_disk_is_one_clear_line(size: str, data: Path) -> None:
    """Wherever the space runs out, the line names GREENLINE_DATA and nothing is left running."""
    data.chmod(0o755)
    options = f"size={size},mode=755"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(data)]).returncode:
        pytest.skip("no mount here")
    try:
        line = fails_with(data)
    finally:
        subprocess.run(["umount", str(data)], check=True)
    assert line.startswith("serve: GREENLINE_DATA: no space left on device")


def _sleepers(conn: psycopg2.extensions.connection) -> int:
    with conn.cursor() as cursor:
        cursor.execute(
            "select count(*) from pg_stat_activity "
            "where usename = 'greenline' and wait_event = 'PgSleep'"
        )
        row = cursor.fetchone()
        return int(row[0]) if row else 0


def _shell(line: str) -> str:
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30)  # noqa: S602
    assert done.returncode == 0, done.stderr
    return done.stdout


def _demand_password(server: Postgres) -> None:
    with closing(psycopg2.connect(server.superuser_url)) as conn, conn.cursor() as cursor:
        conn.autocommit = True
        cursor.execute("alter role greenline password 'another'")
        cursor.execute("show hba_file")
        hba = Path(cursor.fetchone()[0])
        hba.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
        cursor.execute("select pg_reload_conf()")

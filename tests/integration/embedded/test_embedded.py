"""The embedded Postgres and MongoDB: they keep data, survive a kill, and leave nothing behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg2
import pymongo
import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from embedded import store
from embedded.mongo import Mongo
from embedded.postgres import Postgres, temporary
from embedded.process import Child, kill_all
from greenline.errors import ConfigError
from tests.helpers.forms import in_the_long_form, some
from tests.helpers.support import CHECKOUT, IS_LONG, SLOT_WAIT_S, open_folder, wait_until

Server = Postgres | Mongo


class PostgresKind:
    """How to make a Postgres and use it."""

    name = "postgres"

    def make(self, folder: Path) -> Postgres:
        return Postgres(folder, durable=False)

    def add(self, server: Any) -> None:
        with closing(psycopg2.connect(server.url)) as conn, conn, conn.cursor() as cursor:
            cursor.execute("create table if not exists kept (id int)")
            cursor.execute("insert into kept values (1)")

    def count(self, server: Any) -> int:
        with closing(psycopg2.connect(server.url)) as conn, conn, conn.cursor() as cursor:
            cursor.execute("select count(*) from kept")
            return int(cursor.fetchone()[0])


class MongoKind:
    """How to make a MongoDB and use it."""

    name = "mongo"

    def make(self, folder: Path) -> Mongo:
        return Mongo(folder)

    def add(self, server: Any) -> None:
        with MongoClient(server.url) as client:
            client.kept.kept.insert_one({})

    def count(self, server: Any) -> int:
        with MongoClient(server.url) as client:
            return int(client.kept.kept.count_documents({}))


Kind = PostgresKind | MongoKind
each_kind = pytest.mark.parametrize(
    "kind", [PostgresKind(), MongoKind()], ids=lambda kind: kind.name
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as another user")


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder with a blank and a per cent sign in its name, which anyone may enter."""
    with open_folder("greenline a %20b ") as path:
        yield path
    store.remove_under(path)


def processes(mentioning: str) -> list[int]:
    """Return the processes, other than this one, with *mentioning* in their arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mentioning in entry.read_text(errors="replace"):
                found.append(int(entry.parent.name))
        except OSError:  # It ended meanwhile.
            continue
    return [pid for pid in found if pid != os.getpid()]


def sockets(server: Postgres) -> Path:
    """Return the folder of the server's socket."""
    return Path(server.socket).parent


@each_kind
def test_a_restart_keeps_the_data(kind: Kind, data: Path) -> None:
    """What was written before a stop is there after the next start."""
    with kind.make(data / "server") as server:
        kind.add(server)
    with kind.make(data / "server") as server:
        assert kind.count(server) == 1


@each_kind
def test_a_start_after_a_kill_works(kind: Kind, data: Path) -> None:
    """A SIGKILL of the server leaves data that the next start uses."""
    server = kind.make(data / "server")
    server.start()
    kind.add(server)
    server.kill()
    assert server.pid is None
    with server:
        assert kind.count(server) == 1


@each_kind
def test_stop_leaves_no_process_and_may_be_repeated(kind: Kind, data: Path) -> None:
    """After a stop nothing runs on the folder, and a second stop does nothing."""
    server = kind.make(data / "server")
    server.start()
    assert processes(str(data))
    server.stop()
    server.stop()
    assert processes(str(data)) == []


@each_kind
def test_a_second_server_on_the_same_folder_is_refused(kind: Kind, data: Path) -> None:
    """One folder has one server; refusing the second does not disturb the first."""
    with kind.make(data / "server") as first:
        second = kind.make(data / "server")
        with pytest.raises(ConfigError, match="in use by another run"):
            second.start()
        second.stop()
        kind.add(first)
        assert kind.count(first) == 1


@each_kind
@pytest.mark.parametrize(
    "ended", some([signal.SIGKILL, signal.SIGTERM]), ids=some(["SIGKILL", "SIGTERM"])
)
def test_a_server_ends_with_the_process_that_started_it(
    kind: Kind, ended: signal.Signals, data: Path
) -> None:
    """However its supervisor dies, the server goes too, and the next start works."""
    name = kind.name.capitalize()
    script = f"""
import pathlib, sys, time
from embedded.{kind.name} import {name}
{name}(pathlib.Path(sys.argv[1])).start()
print("up", flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", script, str(data / "server")]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"up\n"
        supervisor.send_signal(ended)
    with kind.make(data / "server") as server:
        kind.add(server)
    wait_until(lambda: not processes(str(data)), "the orphans to end")


@in_the_long_form
def test_a_killed_postgres_with_a_busy_backend_starts_again(data: Path) -> None:
    """A backend that outlives its postmaster is ended by the next start, not waited for."""
    busy = "select count(*) from generate_series(1, 1000000000000)"
    server = Postgres(data / "pg", durable=False)
    server.start()
    first_sockets = sockets(server)
    psql = [shutil.which("psql") or "psql", server.url, "-c", busy]
    if shutil.which("psql") is None:
        pytest.skip("no psql to keep a backend busy")
    with subprocess.Popen(psql, stderr=subprocess.PIPE) as client:
        wait_until(lambda: processes(f"{server._title}: greenline"), "the backend")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        server._lock.release()  # As a supervisor's death would.
        with Postgres(data / "pg", durable=False) as second:
            assert client.wait(timeout=10) != 0
            assert not first_sockets.exists()
            PostgresKind().add(second)
    server._child.kill()


def test_a_foreign_process_id_in_the_lock_file_prevents_nothing(data: Path) -> None:
    """After a crash the number in postmaster.pid may belong to anyone by now."""
    server = Postgres(data / "pg", durable=False)
    server.start()
    lock_file = data / "pg" / "data" / "postmaster.pid"
    lines = lock_file.read_text().splitlines()
    server.kill()
    lock_file.write_text("\n".join([str(os.getpid()), *lines[1:], ""]))
    with server:
        PostgresKind().add(server)


def test_an_interrupted_making_of_the_data_is_repaired(data: Path) -> None:
    """Half a cluster, as a kill in the first start leaves it, is made again."""
    (data / "pg" / "data.new").mkdir(parents=True)
    (data / "pg" / "data.new" / "PG_VERSION").write_text("18\n")
    with Postgres(data / "pg", durable=False) as server:
        PostgresKind().add(server)


def test_max_connections_is_honoured_and_the_reserve_is_real(data: Path) -> None:
    """The service's role gets the connections that are not reserved for superusers, no more."""
    with Postgres(data / "pg", max_connections=12, durable=False) as server:
        held = list(_connect_until_refused(server.url))
        admin = psycopg2.connect(server.superuser_url)
        with admin.cursor() as cursor:
            cursor.execute("show max_connections")
            assert cursor.fetchone() == ("12",)
        for conn in (admin, *held):
            conn.close()
        assert len(held) == 12 - 3


def test_postgres_listens_on_no_tcp_port_and_leaves_no_socket_folder(data: Path) -> None:
    """Its only way in is a private folder, which a stop removes."""
    with Postgres(data / "pg", durable=False) as server:
        folder = sockets(server)
        assert folder.stat().st_mode & 0o777 == 0o700
        with closing(psycopg2.connect(server.url)) as conn, conn.cursor() as cursor:
            cursor.execute("show listen_addresses")
            assert cursor.fetchone() == ("",)
            cursor.execute(
                "select current_user, current_setting('is_superuser'), "
                "pg_encoding_to_char(encoding), datlocale "
                "from pg_database where datname = current_database()"
            )
            assert cursor.fetchone() == ("greenline", "off", "UTF8", "C.UTF-8")
    assert not folder.exists()


@as_root
def test_as_root_a_closed_folder_stays_closed_and_works(data: Path) -> None:
    """Data in a folder that only root enters move elsewhere; no mode changes on the way."""
    closed = data / "closed"
    closed.mkdir(mode=0o700)
    kind = PostgresKind()
    with kind.make(closed / "pg") as server:
        kind.add(server)
        home = (closed / "pg" / "data").resolve()
        assert home.is_relative_to(store.ROOT)
    with kind.make(closed / "pg") as server:
        assert kind.count(server) == 1
    assert closed.stat().st_mode & 0o777 == 0o700
    server.remove()
    assert not home.exists()
    assert not (closed / "pg").exists()


@in_the_long_form
@as_root
def test_as_root_a_removed_folder_does_not_come_back(data: Path) -> None:
    """Data kept elsewhere for a folder that was deleted are not found by its successor."""
    closed = data / "closed"
    closed.mkdir(mode=0o700)
    kind = PostgresKind()
    with kind.make(closed / "pg") as server:
        kind.add(server)
    shutil.rmtree(closed / "pg")
    with kind.make(closed / "pg") as server, pytest.raises(psycopg2.errors.UndefinedTable):
        kind.count(server)
    server.remove()


@as_root
def test_as_root_postgres_runs_as_its_own_user(data: Path) -> None:
    """Neither root nor a person owns the server's processes."""
    with Postgres(data / "pg", durable=False) as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid not in (0, os.geteuid())


@in_the_long_form
def test_a_temporary_server_leaves_no_folder() -> None:
    """What tests and benches borrow is gone afterwards."""
    with temporary(max_connections=20) as server:
        PostgresKind().add(server)
        left = [server.folder, sockets(server)]
    assert [path for path in left if path.exists()] == []


def test_mongo_listens_on_the_loopback_only(data: Path) -> None:
    """No other machine reaches it."""
    with Mongo(data / "mongo") as server:
        assert server.url.startswith("mongodb://127.0.0.1:")
        assert server.kind in ("mongod", "secantusdb")
        wanted = f":{server.port:04X}"
        for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
            rows = [line.split() for line in table.read_text().splitlines()[1:]]
            listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(wanted)]
            assert listening in ([], [f"0100007F{wanted}"])


def test_no_other_program_gets_the_port_of_a_mongo_that_starts(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds to listen there."""
    server, start, refused = Mongo(data / "mongo"), Child.start, list[int]()

    def start_where_another_wants_the_port(child: Child, *given: Any, **more: Any) -> None:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", server.port))
        refused.append(server.port)
        start(child, *given, **more)

    monkeypatch.setattr(Child, "start", start_where_another_wants_the_port)
    with server:
        assert refused == [server.port]
        MongoKind().add(server)


def test_no_acknowledged_write_is_lost_when_mongo_is_killed(data: Path) -> None:
    """Four writers, while the engine is killed as a power cut would, and started again."""
    acknowledged: set[str] = set()
    for _ in range(10 if IS_LONG else 2):
        server = Mongo(data / "mongo")
        with server, MongoClient[dict[str, Any]](server.url, retryWrites=False) as client:
            found = {one["_id"] for one in client.test.kept.find()}
            assert acknowledged <= found, f"{len(acknowledged - found)} of {len(acknowledged)} lost"
            ended = len(acknowledged) + 100
            writers = [Thread(target=_write, args=(client, acknowledged)) for _ in range(4)]
            for writer in writers:
                writer.start()
            wait_until(lambda: len(acknowledged) >= ended, "writes", 60)  # noqa: B023
            server.kill()
            for writer in writers:
                writer.join(30)
    with Mongo(data / "mongo") as server, MongoClient[dict[str, Any]](server.url) as client:
        assert acknowledged <= {one["_id"] for one in client.test.kept.find()}


def _write(client: "MongoClient[dict[str, Any]]", acknowledged: set[str]) -> None:
    with suppress(PyMongoError):
        while True:
            key = os.urandom(8).hex()
            with pymongo.timeout(10):
                client.test.kept.insert_one({"_id": key})
            acknowledged.add(key)


def test_kill_all_spares_what_is_not_ours() -> None:
    """Only processes whose arguments are recognised are ended."""
    with subprocess.Popen(["sleep", "60"]) as spared:
        kill_all(lambda arguments: arguments[0] == "no such program")
        assert spared.poll() is None
        spared.kill()


def _connect_until_refused(url: str) -> Iterator[Any]:
    while True:
        try:
            yield psycopg2.connect(url, connect_timeout=SLOT_WAIT_S)
        except psycopg2.OperationalError as error:
            if "remaining connection slots are reserved" not in str(error):
                raise
            return

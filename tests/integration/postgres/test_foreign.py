"""``psycopg2.connect`` of an application: its timeout, names, and the wait for a slot."""

import gc
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import gevent.socket
import psycopg2
import pytest
from gevent.event import Event
from gevent.server import StreamServer
from psycopg2.extensions import connection

from embedded.postgres import Postgres
from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.postgres import backlog, foreign
from greenline.postgres.connect import connect as connect_our_own
from greenline.telemetry import counters, shared_memory
from tests.helpers.greenlets import at_once
from tests.helpers.pools import Watch, limited, through
from tests.helpers.proxy import Proxy
from tests.helpers.support import CHECKOUT, wait_until

LIMIT_S = 30.0
SLACK_S = 1.5


@pytest.fixture
def deaf(proxy: Proxy) -> Proxy:
    """A server that accepts and says nothing."""
    proxy.deafen()
    return proxy


@pytest.fixture
def no_connections(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has none but that of *watch*, which does not count, and has closed none."""
    del watch  # it connects before
    monkeypatch.setattr(foreign, "_open", set())
    monkeypatch.setattr(foreign, "_closed_s", float("-inf"))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The descriptor of memory that workers share, which this process has joined."""
    fd = shared_memory.share()
    monkeypatch.setattr(counters, "_own", None)
    counters.join(fd)
    yield fd
    os.close(fd)


def ask(url: str, statement: str = "select 1", **more: Any) -> Any:
    """Return the first value of the answer, from a connection of its own."""
    with closing(psycopg2.connect(url, **more)) as conn, conn.cursor() as cursor:
        cursor.execute(statement)
        return (cursor.fetchone() or (None,))[0]


def test_connect_timeout_counts(deaf: Proxy) -> None:
    """It is libpq's error, and other greenlets run meanwhile."""
    started = monotonic()
    failing = gevent.spawn(psycopg2.connect, through(deaf), connect_timeout=1)
    ticks = 0
    while not failing.ready():
        gevent.sleep(0.05)
        ticks += 1
    assert 0.9 < monotonic() - started < 1 + SLACK_S
    assert ticks > 2
    assert isinstance(failing.exception, psycopg2.OperationalError)
    assert str(failing.exception) == (
        f'connection to server at "127.0.0.1", port {deaf.port} failed: timeout expired\n'
    )


def test_connect_timeout_is_for_each_host(deaf: Proxy, postgres: Postgres) -> None:
    """One that does not answer is given up, whichever libpq tried before, and the next is tried."""
    first = f"postgresql://greenline@127.0.0.1:1,localhost:{deaf.port}"
    rest = "/greenline?sslmode=disable&connect_timeout=1"
    with Proxy(postgres.socket) as healthy:
        started = monotonic()
        found = gevent.spawn(ask, f"{first},127.0.0.1:{healthy.port}{rest}")
        with pytest.raises(psycopg2.OperationalError) as caught:
            psycopg2.connect(f"{first}{rest}")
        assert found.get(timeout=LIMIT_S) == 1
        assert monotonic() - started < 2 + SLACK_S
    assert f"port {deaf.port} failed: timeout expired" in str(caught.value)
    assert "Connection refused" in str(caught.value)


def test_the_deadline_ends_a_connect(deaf: Proxy) -> None:
    """However much time ``connect_timeout`` leaves."""
    with deadline.limit(0.2), pytest.raises(DeadlineExceeded):
        psycopg2.connect(through(deaf), connect_timeout=20)


def spellings(port: int, folder: Path) -> dict[str, tuple[dict[str, str], dict[str, Any]]]:
    """Return environments and arguments that all name the host db.example."""
    service = folder / "pg_service.conf"
    service.write_text(f"# ours\n[other]\nhost=/tmp\n[green]\nhost=db.example\nport={port}\n")
    rest = {"user": "greenline", "dbname": "greenline"}
    return {
        "keywords": ({}, {"host": "db.example", "port": port, **rest}),
        "string": ({}, {"dsn": f"host=db.example port={port} user=greenline dbname=greenline"}),
        "URL": ({}, {"dsn": f"postgresql://greenline@db.example:{port}/greenline"}),
        "environment": ({"PGHOST": "db.example", "PGPORT": str(port)}, rest),
        "service": ({"PGSERVICEFILE": str(service)}, {"service": "green", **rest}),
    }


@pytest.mark.parametrize("spelling", ["keywords", "string", "URL", "environment", "service"])
def test_names_are_looked_up_in_the_hub(
    spelling: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the host is named; libpq gets its address, and the name for TLS."""
    asked = []
    look_up = gevent.socket.getaddrinfo

    def slowly(host: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        gevent.sleep(0.1)
        return look_up("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(gevent.socket, "getaddrinfo", slowly)
    environ, arguments = spellings(proxy.port, tmp_path)[spelling]
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    connecting = gevent.spawn(psycopg2.connect, **arguments)
    ticks = 0
    while not connecting.ready():
        gevent.sleep(0.01)
        ticks += 1
    with closing(connecting.get()) as conn:
        assert conn.info.host == "db.example"
        assert conn.info.dsn_parameters["hostaddr"] == "127.0.0.1"
    assert ticks > 1
    assert asked == ["db.example"]


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is psycopg2's, in libpq's words."""

    def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(gevent.socket, "getaddrinfo", fail)
    with pytest.raises(psycopg2.OperationalError) as caught:
        psycopg2.connect("host=nowhere.example")
    assert str(caught.value) == (
        'could not translate host name "nowhere.example" to address: Name or service not known\n'
    )


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("host=127.0.0.1 connect_timeout=soon", 'invalid integer value "soon"'),
        ("service=nowhere", 'service "nowhere" not found'),
        ("host=127.0.0.1,127.0.0.1 port=1,2,3", "3 port numbers to 2 hosts"),
    ],
    ids=["timeout", "service", "ports"],
)
def test_what_libpq_refuses_it_still_refuses(dsn: str, words: str) -> None:
    """With the same words."""
    with pytest.raises(psycopg2.OperationalError, match=words):
        psycopg2.connect(dsn)


def test_a_burst_of_five_hundred_connects(postgres: Postgres) -> None:
    """Neither the full backlog of the unix socket nor the server's limit is an error."""
    answers = at_once(*[lambda: ask(postgres.url)] * 500)
    assert answers == [1] * 500
    assert foreign.waiting == 0


def test_our_own_connect_waits_for_a_full_backlog(postgres: Postgres) -> None:
    """The pool's connect is subject to it like any other."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Proxy(postgres.socket) as proxy,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        path = f"{folder}/.s.PGSQL.5432"
        listener.bind(path)
        listener.listen(0)
        filling = []
        with suppress(BlockingIOError):
            while True:
                filling.append(socket.socket(socket.AF_UNIX))
                filling[-1].setblocking(False)
                filling[-1].connect(path)
        connecting = gevent.spawn(
            connect_our_own, f"postgresql://greenline@/greenline?host={folder}", LIMIT_S
        )
        gevent.sleep(0.05)
        assert not connecting.ready()
        for one in filling:
            one.close()
        accepting = gevent.spawn(proxy._accept, listener)
        with closing(connecting.get(timeout=LIMIT_S)) as conn:
            assert conn.pid
        accepting.kill()


def test_more_connects_than_the_server_has_slots(watch: Watch) -> None:
    """They are served in turn, as connections are closed, and those that wait are counted."""
    url = limited(watch, 3)
    held = [psycopg2.connect(url) for _ in range(3)]
    served: list[int] = []

    def work(number: int) -> None:
        with closing(psycopg2.connect(url)) as conn, conn.cursor() as cursor:
            served.append(number)
            cursor.execute("select pg_sleep(0.01)")

    running = []
    for number in range(20):
        running.append(gevent.spawn(work, number))
        wait_until(lambda: foreign.waiting == len(running), "the greenlet to wait")
    for conn in held:
        conn.close()
    with gevent.Timeout(LIMIT_S):
        gevent.joinall(running, raise_error=True)
    assert sorted(served) == list(range(20))
    # As many as slots became free try at once: not strictly in the order in which they came.
    assert max(served.index(number) for number in range(5)) < 15
    assert foreign.waiting == 0


AUTHENTICATED = b"R\0\0\0\x08\0\0\0\0"
PARAMETERS = {"client_encoding": "UTF8", "DateStyle": "ISO", "server_version": "18.0"}
READY = b"Z\0\0\0\x05I"
IN_GERMAN = b"SFATAL\0VFATAL\0C53300\0Mtut mir leid, schon zu viele Verbindungen\0Fpostmaster.c\0\0"


@pytest.mark.parametrize("before", [b"", AUTHENTICATED], ids=["at once", "authenticated"])
@pytest.mark.parametrize("hosts", [1, 2], ids=["one host", "two"])
def test_a_server_that_refuses_in_another_language(
    before: bytes, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has no slot for is known by the SQLSTATE that it sends, not by its words."""
    served: list[socket.socket] = []

    def serve(sock: socket.socket, _: Any) -> None:
        sock.recv(4096)
        if served:
            sock.sendall(before + b"E" + (len(IN_GERMAN) + 4).to_bytes(4) + IN_GERMAN)
            return
        served.append(sock)
        pairs = [f"{name}\0{value}\0".encode() for name, value in PARAMETERS.items()]
        parameters = [b"S" + (len(pair) + 4).to_bytes(4) + pair for pair in pairs]
        sock.sendall(AUTHENTICATED + b"".join(parameters) + READY)
        while sock.recv(4096):
            pass
        served.clear()

    with closing(StreamServer(("127.0.0.1", 0), serve)) as server:
        server.start()
        host, port = ",".join(["127.0.0.1"] * hosts), ",".join([str(server.server_port)] * hosts)
        url = f"postgresql://greenline@/greenline?host={host}&port={port}&sslmode=disable"
        with closing(psycopg2.connect(url)):
            with (
                monkeypatch.context() as patch,
                pytest.raises(psycopg2.OperationalError, match="schon zu viele") as caught,
            ):
                patch.setattr(foreign, "_open", set())
                patch.setattr(foreign, "_closed_s", float("-inf"))
                psycopg2.connect(url)
            assert type(caught.value) is psycopg2.OperationalError
            waiting = gevent.spawn(psycopg2.connect, url, connect_timeout=20)
            wait_until(lambda: foreign.waiting == 1, "the greenlet to wait")
        waiting.get(timeout=LIMIT_S).close()


def test_a_refused_connect_is_closed_at_once(watch: Watch) -> None:
    """Not when the collector finds it: a storm of them would use up the descriptors."""
    url = limited(watch, 1)
    with closing(psycopg2.connect(url)) as held:
        gc.collect()
        gc.disable()
        try:
            before = len(os.listdir("/proc/self/fd"))
            waiting = [gevent.spawn(ask, url) for _ in range(10)]
            wait_until(lambda: foreign.waiting == 10, "the greenlets to wait")
            assert len(os.listdir("/proc/self/fd")) <= before + 1  # the first tries again
            held.close()
            gevent.joinall(waiting, timeout=LIMIT_S, raise_error=True)
            wait_until(lambda: len(os.listdir("/proc/self/fd")) < before, "all to be closed")
        finally:
            gc.enable()


def test_a_connection_that_is_dropped_frees_its_slot(watch: Watch) -> None:
    """Not every application closes what it opens."""
    url = limited(watch, 1)
    held: list[connection] = [psycopg2.connect(url)]
    waiting = gevent.spawn(ask, url)
    wait_until(lambda: foreign.waiting == 1, "the greenlet to wait")
    held.clear()
    assert waiting.get(timeout=LIMIT_S) == 1


def test_connect_timeout_ends_the_wait_for_a_slot(watch: Watch) -> None:
    """The error is the server's."""
    url = limited(watch, 1)
    with closing(gevent.spawn(psycopg2.connect, url).get()):
        started = monotonic()
        with pytest.raises(psycopg2.OperationalError, match="too many connections for role"):
            psycopg2.connect(url, connect_timeout=1)
        assert 0.9 < monotonic() - started < 1 + SLACK_S
    assert ask(url) == 1


@pytest.mark.usefixtures("no_connections")
def test_without_connections_of_its_own_a_worker_does_not_wait(watch: Watch) -> None:
    """Nothing that it does would free a slot."""
    url = limited(watch, 1)
    with closing(backlog.psycopg2_connect(url)):
        with pytest.raises(psycopg2.OperationalError, match="too many connections for role"):
            psycopg2.connect(url)


@pytest.mark.usefixtures("no_connections")
def test_those_that_have_one_and_wait_for_another_one_do_not_wait_for_each_other(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under threads they fail at once, and those that are left get their slots."""
    monkeypatch.setattr(foreign, "_closed_s", monotonic())
    url = limited(watch, 3)
    begun_s = monotonic()
    ended: list[bool] = []

    def hold_and_connect() -> None:
        with closing(psycopg2.connect(url)) as conn, conn.cursor() as cursor:
            cursor.execute("select 1")
            wait_until(lambda: foreign.waiting > 1, "the others to wait for their first one")
            with closing(psycopg2.connect(url)):
                ended.append(True)

    running = [gevent.spawn(hold_and_connect) for _ in range(5)]
    with gevent.Timeout(LIMIT_S):
        gevent.joinall(running)
    failed = [job.exception for job in running if job.exception is not None]
    assert monotonic() - begun_s < foreign.SLOT_LINGER_S - SLACK_S
    assert ended
    assert failed
    assert all(foreign.has_no_slot(error) for error in failed)
    assert foreign.waiting == 0


@pytest.mark.usefixtures("no_connections")
def test_who_got_a_connection_of_a_pool_may_close_it(watch: Watch) -> None:
    """Not the one that made it, which waits."""
    url = limited(watch, 1)
    made, asked = Event(), Event()
    conns: list[connection] = []

    def make() -> None:
        conns.append(psycopg2.connect(url))
        made.set()
        asked.wait()
        ask(url)

    def use() -> None:
        made.wait()
        with conns[0].cursor() as cursor:
            cursor.execute("select 1")
        asked.set()
        wait_until(lambda: foreign.waiting == 1, "the other one to wait")
        gevent.sleep(foreign.SLOT_PAUSE_S * 20)  # it has tried again
        conns[0].close()

    with gevent.Timeout(LIMIT_S):
        gevent.joinall([gevent.spawn(make), gevent.spawn(use)], raise_error=True)


@pytest.mark.usefixtures("no_connections")
def test_a_connect_that_is_under_way_is_waited_for(watch: Watch, proxy: Proxy) -> None:
    """It has the slot already: the first requests of a new worker connect side by side."""
    url = limited(watch, 1)
    role = psycopg2.extensions.parse_dsn(url)["user"]
    proxy.mute()
    first = gevent.spawn(psycopg2.connect, through(proxy).replace("greenline@", f"{role}@"))
    backends = "select count(*) from pg_stat_activity where usename = %s"
    wait_until(lambda: watch.ask(backends, role) == 1, "the server to have it")
    second = gevent.spawn(ask, url)
    wait_until(lambda: foreign.waiting == 1 or second.ready(), "the other one to be refused")
    proxy.pass_on()
    first.get(timeout=LIMIT_S).close()
    assert second.get(timeout=LIMIT_S) == 1


def connected_elsewhere(url: str) -> Any:
    """Return a connection of which this process does not know, None if the server refuses it."""
    with suppress(psycopg2.OperationalError):
        return backlog.psycopg2_connect(url)
    return None


HOLD = """
import sys
from greenline.telemetry import counters
from greenline import patch
patch.patch_all()
import gevent
import psycopg2
from greenline.postgres import foreign
counters.join(int(sys.argv[1]))
conn = psycopg2.connect(sys.argv[2])
print("holds", flush=True)
while not foreign.slots_wanted():
    gevent.sleep(0.02)
conn.close()
"""


@pytest.mark.usefixtures("no_connections")
def test_a_worker_waits_for_what_another_one_holds(
    watch: Watch, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one sees that it is waited for. When it is gone, there is nothing to wait for."""
    url = limited(watch, 1)
    command = [sys.executable, "-c", HOLD, str(memory), url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, pass_fds=(memory,), cwd=CHECKOUT
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"holds\n"
        assert ask(url) == 1
    monkeypatch.setattr(foreign, "_closed_s", float("-inf"))
    counters.join(memory).read_gauges()  # as the worker does ten times a second
    # The server may still count the connection that was closed last.
    with closing(wait_until(lambda: connected_elsewhere(url), "a connection slot")):
        with pytest.raises(psycopg2.OperationalError, match="too many connections for role"):
            psycopg2.connect(url)


@pytest.mark.usefixtures("no_connections", "memory")
def test_a_worker_whose_greenlet_waits_no_more_is_seen_to_hold_one(watch: Watch) -> None:
    """At once: another worker may be refused before the next look."""
    url = limited(watch, 1)
    with closing(psycopg2.connect(url)):
        with pytest.raises(psycopg2.OperationalError, match="too many connections for role"):
            psycopg2.connect(url)
        assert counters.value(foreign.HOLDING) == 1


def test_a_greenlet_that_is_killed_leaves_the_queue(watch: Watch) -> None:
    """The first as well as one that stands behind it."""
    url = limited(watch, 1)
    with closing(psycopg2.connect(url)):
        first, second, third = (gevent.spawn(ask, url) for _ in range(3))
        wait_until(lambda: foreign.waiting == 3, "all to wait")
        gevent.killall([first, second])
        assert foreign.waiting == 1
        with deadline.limit(0.1), pytest.raises(DeadlineExceeded):
            psycopg2.connect(url)
    assert third.get(timeout=LIMIT_S) == 1
    assert foreign.waiting == 0


def test_connections_that_are_left_alone(postgres: Postgres) -> None:
    """Asynchronous ones are psycopg2's own, and so is everything without the hook."""
    with closing(psycopg2.connect(postgres.url, async_=1)) as conn:
        assert type(conn) is connection
    with closing(connect_our_own(postgres.url, LIMIT_S)) as ours:
        assert not isinstance(ours, foreign.ForeignConnection)

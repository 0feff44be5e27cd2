"""Hosts that are counted: all together never exceed what the server allows, come and go who may."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import gevent
import psycopg2
import pytest

from bench.backends import Backends, Highest
from embedded.mongo import Mongo
from embedded.postgres import Postgres, temporary
from greenline.budget.plan import HEAD_ROOM, NEWCOMERS, PostgresFacts
from greenline.errors import ConfigError
from greenline.postgres.connect import connect
from greenline.postgres.hosts import REGISTRY_CHECK_S, SETTLE_S, require_sessions
from greenline.postgres.registry import GONE_S, Registry, application, count_hosts
from greenline.slots.file import FREE, SERVER
from greenline.slots.lease import LEASE_S, LeasedSlotTable
from tests.helpers.forms import in_the_long_form
from tests.helpers.member import Member
from tests.helpers.pools import Watch, limited, run
from tests.helpers.support import (
    CHECKOUT,
    IS_LONG,
    Databases,
    Service,
    environ,
    service,
    wait_until,
)
from tests.helpers.support import run as run_command

# Hosts, workers a host, max_connections, hosts that are killed.
SIMULATED = (10, 4, 100, 3) if IS_LONG else (4, 2, 30, 1)
LONG_S = "4.0" if IS_LONG else "0.5"  # a statement that delays a shrinking
SLACK_S = 1.0

Make = Callable[..., Member]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server of these tests' own: the session's has connections that no host has registered."""
    with temporary() as server:
        yield server


@pytest.fixture(scope="module")
def databases(postgres: Postgres, mongo: Mongo) -> Databases:
    """Both servers with the schema."""
    databases = Databases(postgres.url, mongo.url)
    run_command(["flask", "db", "upgrade"], databases.environ)
    return databases


@pytest.fixture
def url(watch: Watch) -> str:
    """Twelve connections of a role at most: two are for those who come, one is for a command."""
    return limited(watch, 12)


@pytest.fixture
def make(url: str, tmp_path: Path) -> Iterator[Make]:
    """Makes a worker of the host of that name, started or not."""

    def make(name: str, *, start: bool = True, **options: int) -> Member:
        member = Member(tmp_path / name, partial(connect, url, 5.0), **options)
        stack.callback(member.close)
        if start:
            member.start()
        return member

    with ExitStack() as stack:
        yield make


def has(member: Member, capacity: int) -> Callable[[], bool]:
    return lambda: member.slot_table.allowed == capacity and member.slot_table.is_leased()


def holds(member: Member) -> int:
    return member.slot_table.stats()["held_by_all"]


def slot_of(member: Member) -> int:
    """Return the number of the slot of *member*'s control connection."""
    return member.control.ask(lambda conn: -1 if conn.slot is None else conn.slot.number)


def asks(member: Member, statement: str, times: int) -> list["gevent.Greenlet[..., object]"]:
    return [gevent.spawn(run, member.pool, statement) for _ in range(times)]


def test_one_host_has_all_but_what_newcomers_need(make: Make) -> None:
    """It begins with one connection, and grows when it knows that it is alone."""
    begun = monotonic()
    member = make("one")
    wait_until(lambda: member.slot_table.allowed == 1, "the registration")
    wait_until(has(member, 9), "nine of twelve")
    assert monotonic() - begun >= SETTLE_S


def test_a_newcomer_waits_until_the_others_hold_less(make: Make) -> None:
    """Statements that last are not cut off; the newcomer has what is left until they end."""
    first = make("first")
    wait_until(has(first, 9), "the first to have all")
    asked = asks(first, "select pg_sleep(4)", 6)
    wait_until(lambda: holds(first) == 7, "the first to hold all but what a reload needs")
    second = make("second")
    # The limit is of what the first does; to connect takes the second a second on a busy machine.
    wait_until(lambda: second.slot_table.allowed == 1, "the registration of the second")
    wait_until(has(first, 4), "the first to shrink", 2 * REGISTRY_CHECK_S + SLACK_S)
    while holds(first) == 7:
        assert second.slot_table.allowed <= 2
        gevent.sleep(0.01)
    wait_until(has(second, 4), "the second to have its half")
    gevent.joinall(asked, raise_error=True)
    assert first.plan is not None
    assert first.plan == second.plan
    assert (first.plan.host, first.plan.all_hosts) == (4, 9)


def test_a_host_that_is_gone_counts_for_a_while(make: Make) -> None:
    """The other one grows after five seconds, and not before."""
    first, second = make("first"), make("second")
    wait_until(has(first, 4), "a half")
    wait_until(has(second, 4), "the other half")
    second.close()
    gone = monotonic()
    while monotonic() - gone < GONE_S - 2 * REGISTRY_CHECK_S:
        assert first.slot_table.allowed == 4
        gevent.sleep(0.05)
    wait_until(has(first, 9), "all", SLACK_S + 4 * REGISTRY_CHECK_S)


def test_what_a_host_left_behind_counts_until_it_is_gone(make: Make, watch: Watch) -> None:
    """Connections that no host has registered are not given away, however long they last."""
    first = make("first")
    wait_until(has(first, 9), "all")
    with closing(connect(_url(watch), 5.0, application=application(17))):
        second = make("second")
        wait_until(has(first, 4), "a half")
        wait_until(has(second, 4), "the other half")
        second.close()
        wait_until(has(first, 8), "all but one")
        gevent.sleep(2 * REGISTRY_CHECK_S)
        assert first.slot_table.allowed == 8
    wait_until(has(first, 9), "all")


def _url(watch: Watch) -> str:
    host = watch.ask("show unix_socket_directories")
    return f"postgresql://greenline@/greenline?host={host}"


def test_a_registrar_that_cannot_ask_lets_its_host_not_grow(make: Make) -> None:
    """Nothing is taken when the lease is over; what is held works on."""
    registrar = make("host", workers=2)
    wait_until(has(registrar, 9), "the registration")
    other_worker = make("host", workers=2)
    assert run(other_worker.pool, "select 7") == 7
    registrar.hosts.close()  # it is stuck, and its session lives
    gevent.sleep(LEASE_S)
    assert not other_worker.slot_table.leads()
    assert run(other_worker.pool, "select 7") == 7
    gevent.joinall(asks(other_worker, "select pg_sleep(0.1)", 3), raise_error=True)
    assert other_worker.pool.stats()["size"] == 1
    assert other_worker.slot_table.take() is None
    registrar.hosts.start(registrar.control)
    asked = asks(other_worker, "select pg_sleep(1)", 2)
    wait_until(lambda: other_worker.pool.stats()["size"] == 2, "the host to go on")
    gevent.joinall(asked, raise_error=True)


def test_another_worker_becomes_registrar_when_the_first_ends(make: Make, watch: Watch) -> None:
    """The host loses nothing, and the number of hosts stays the same."""
    registrar, other_worker, other = make("host", workers=2), make("host", workers=2), make("other")
    wait_until(has(registrar, 4), "a half")
    wait_until(has(other, 4), "the other half")
    assert run(other_worker.pool, "select 7") == 7
    number = registrar.slot_table.number
    registrar.close()
    ended = monotonic()
    wait_until(other_worker.slot_table.leads, "the other worker to lead")
    while monotonic() - ended < 1.5 * LEASE_S:
        assert (
            other_worker.slot_table.allowed,
            other_worker.slot_table.hosts,
            other.slot_table.allowed,
        ) == (
            4,
            2,
            4,
        )
        gevent.sleep(0.02)
    assert other_worker.slot_table.is_leased()
    assert other_worker.slot_table.number == number


def test_a_host_whose_session_was_ended_registers_again(make: Make, watch: Watch) -> None:
    """With what it had, because it was not away for long."""
    member = make("host")
    wait_until(has(member, 9), "the registration")
    pid = member.control.ask(lambda conn: conn.pid)
    watch.ask("select pg_terminate_backend(%s)", pid)
    wait_until(lambda: member.control.ask(lambda conn: conn.pid) != pid, "another session")
    wait_until(has(member, 9), "the registration again")
    assert holds(member) <= 2


def test_after_a_restart_of_the_server_a_host_is_a_newcomer(make: Make) -> None:
    """What it had was of another time: there may be less to share."""
    member = make("host")
    wait_until(has(member, 9), "the registration")
    member.slot_table.lease(1, 0, member.slot_table._file.cells[SERVER] - 1)
    member.hosts._registered_s = 0.0
    assert member.control._conn is not None
    member.control._drop(member.control._conn).join()
    wait_until(lambda: member.slot_table.allowed == 1, "the beginning")
    wait_until(has(member, 9), "all")


def test_what_is_idle_beyond_the_share_goes_at_once(make: Make) -> None:
    """A host that shrinks gives what it does not use, and its control connection moves."""
    first = make("first")
    wait_until(has(first, 9), "all")
    gevent.joinall(asks(first, "select pg_sleep(0.1)", 6), raise_error=True)
    assert holds(first) == 7
    second = make("second")
    # The limit is of what the first does; to connect takes the second a second on a busy machine.
    wait_until(lambda: second.slot_table.allowed == 1, "the registration of the second")
    wait_until(has(second, 4), "its half", REGISTRY_CHECK_S + SETTLE_S + SLACK_S)
    assert holds(first) <= 4


def test_a_control_connection_beyond_the_share_moves(make: Make, watch: Watch) -> None:
    """It would keep what is another host's for ever."""
    first = make("first")
    wait_until(has(first, 9), "all")
    first.slot_table.reserve(0)
    taken = [first.slot_table.take() for _ in range(7)]
    other_worker = make("first", start=False)
    other_worker.slot_table.reserve(0)
    other_worker.start()
    wait_until(lambda: slot_of(other_worker) == 8, "a high slot")
    for slot in taken:
        if slot is not None:
            first.slot_table.give(slot)
    make("second")
    wait_until(lambda: slot_of(other_worker) < 4, "a low one")
    wait_until(lambda: first.slot_table._file.states(4, 9).count(FREE) == 5, "the rest to be free")


def test_hosts_that_do_not_fit_are_reported_and_keep_their_minimum(make: Make) -> None:
    """With five hosts of one worker there is not one more for the fifth; its error has the sum."""
    members = [make(str(number)) for number in range(4)]
    for member in members:
        wait_until(has(member, 2), "two each")
    late = make("late")
    wait_until(lambda: late.slot_table.hosts == 5, "to be counted")
    with pytest.raises(ConfigError, match=r"9 a host|by 5 hosts"):
        late.hosts.check()
    assert late.slot_table.allowed == 1
    assert [member.slot_table.allowed for member in members] == [2] * 4
    assert [run(member.pool, "select 7") for member in members] == [7] * 4


def test_the_hosts_are_counted_by_their_locks(make: Make, url: str) -> None:
    """Each connection can count them; a host that is not there any more is not counted."""
    members = [make("first"), make("second")]
    for member in members:
        wait_until(has(member, 4), "a half")
    with closing(psycopg2.connect(url)) as conn:
        conn.autocommit = True
        assert count_hosts(conn) == 2
        members[0].close()
        wait_until(lambda: count_hosts(conn) == 1, "one to be gone")


def test_a_pooler_of_transactions_is_refused() -> None:
    """The lock would be another client's after the first transaction."""
    with pytest.raises(ConfigError, match=r"^GREENLINE_HOSTS: .* pgbouncer"):
        require_sessions(PostgresFacts(100, behind_pgbouncer=True))
    require_sessions(PostgresFacts(100))


def test_who_is_gone_is_remembered_for_a_while() -> None:
    """With the number of connections that it registered last."""
    hosts = Registry()
    hosts.note({1: 8, 2: 8}, 100.0)
    hosts.note({1: 4}, 100.2)
    assert (len(hosts), hosts.registered_by_others(1)) == (2, 8)
    hosts.note({1: 4}, 100.0 + GONE_S)
    assert (len(hosts), hosts.registered_by_others(1), hosts.registered_by_others(2)) == (
        1,
        0,
        4,
    )


class Host:
    """The processes of a simulated host, each with a file of what it wrote."""

    def __init__(self, folder: Path, name: str, url: str, workers: int) -> None:
        self.path = folder / name
        self.slot_table = LeasedSlotTable(self.path)
        self.logs = [folder / f"{name}.{number}" for number in range(workers)]
        command = [
            sys.executable,
            "-m",
            "tests.helpers.host_worker",
            url,
            str(self.path),
            str(workers),
            LONG_S,
        ]
        self.processes = []
        for log in self.logs:
            with log.open("w") as output:
                self.processes.append(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=output, stderr=output,
                        cwd=CHECKOUT, env=environ({}),
                    )
                )  # fmt: skip

    def is_ready(self) -> bool:
        """Return whether each worker waits for the word."""
        return all("ready" in log.read_text() for log in self.logs)

    def go(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.close()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.slot_table.close()

    def served(self) -> list[int]:
        """Return how many statements each worker has run."""
        lines = [log.read_text().splitlines() for log in self.logs]
        return [
            max((int(line.split()[1]) for line in printed if line.startswith("served ")), default=0)
            for printed in lines
        ]

    def said(self) -> list[str]:
        """Return what went wrong."""
        lines = [line for log in self.logs for line in log.read_text().splitlines()]
        return [line for line in lines if not line.startswith(("ready", "served ", "log "))]


REFUSED = ("too many clients", "remaining connection slots", "too many connections")


@pytest.mark.timeout(240)
def test_hosts_come_and_go_and_the_server_refuses_no_connection(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All start within a second, some are killed, others come, the server restarts."""
    count, workers, max_connections, killed = SIMULATED
    budget = max_connections - 3 - HEAD_ROOM
    all_hosts = budget - min(NEWCOMERS, budget // 4)
    figures: list[str] = []

    def wait_for_shares(number: int) -> None:
        share = all_hosts // number
        wait_until(lambda: all(h.slot_table.allowed == share for h in hosts), f"{share} each", 60)
        _go_on(hosts)

    def note(what: str) -> None:
        figures.append(f"{what} {monotonic() - begun:.1f} s")

    with temporary(max_connections) as server, ExitStack() as stack:
        with closing(psycopg2.connect(server.superuser_url)) as conn, conn.cursor() as cursor:
            cursor.execute("grant pg_read_all_stats to greenline")  # who looks is no client
            conn.commit()
        sockets = Path(stack.enter_context(TemporaryDirectory(prefix="greenline-"))) / "sockets"
        sockets.symlink_to(Path(server.socket).parent)
        url = f"postgresql://greenline@/greenline?host={sockets}"
        everybody = [Host(tmp_path, f"h{n}", url, workers) for n in range(count + killed)]
        for host in everybody:
            stack.callback(host.kill)
        wait_until(lambda: all(host.is_ready() for host in everybody), "their imports", 60)
        with closing(Backends(server.superuser_url)) as backends, Highest(backends) as highest:
            begun, hosts = monotonic(), everybody[:count]
            for host in hosts:
                host.go()
            assert monotonic() - begun < 1
            wait_until(lambda: all(all(host.served()) for host in hosts), "all to serve", 60)
            note("all serve after")
            wait_for_shares(count)
            for process in [process for host in hosts[:killed] for process in host.processes]:
                process.send_signal(signal.SIGKILL)
            begun, hosts = monotonic(), hosts[killed:]
            while monotonic() - begun < GONE_S - 0.5:
                assert all(host.slot_table.allowed <= all_hosts // count for host in hosts)
                gevent.sleep(0.05)
            wait_for_shares(count - killed)
            note(f"{killed} killed, shares grown and used after")
            begun, hosts = monotonic(), everybody[killed:]
            for host in everybody[count:]:
                host.go()
            wait_for_shares(count)
            note(f"{killed} new, even shares after")
        assert highest.seen <= budget
        refused = _refused(server)
        server.stop()
        server.start()
        begun = monotonic()
        sockets.unlink()
        sockets.symlink_to(Path(server.socket).parent)
        with closing(Backends(server.superuser_url)) as backends, Highest(backends) as again:
            _go_on(hosts)
            note("all serve after a restart within")
            wait_for_shares(count)
            note("even shares within")
        assert again.seen <= budget
        refused += _refused(server)
    figures.append(f"highest {highest.seen} and {again.seen} of {budget}")
    said = sorted({line for host in everybody for line in host.said()})
    if IS_LONG:
        with capsys.disabled():
            print(f"\n{count} hosts of {workers}: {'; '.join(figures)}", *said, sep="\n  ")
    assert refused + [line for line in said if any(text in line for text in REFUSED)] == []


@in_the_long_form
def test_the_service_follows_the_number_of_hosts(databases: Databases) -> None:
    """Its log and /ops/budget tell the plan for as many as there are now."""
    with ExitStack() as stack:
        services = [stack.enter_context(service(_counted(databases, number))) for number in (2, 3)]
        wait_until(lambda: all(_hosts(one) == 2 for one in services), "both to know of two")
        assert "as counted now" in services[0].log
        assert "2 are registered now" in run_command(BUDGET, _counted(databases, 2)).stderr
        services[1].stop()
        wait_until(lambda: _hosts(services[0]) == 1, "one to be alone", GONE_S + 2 * SLACK_S)


BUDGET = ("python", "-m", "greenline", "budget")
TOKEN = "sesame"


def _counted(databases: Databases, number: int) -> dict[str, str]:
    """Return the settings of one of several hosts on this machine: to each its slot table."""
    address = databases.postgres.replace("host=/", f"host={'/' * number}")
    more = {"GREENLINE_HOSTS": "auto", "WEB_CONCURRENCY": "1", "OPS_TOKEN": TOKEN}
    more["LOG_LEVEL"] = "debug"
    return {**databases.environ, **more, "DATABASE_URL": address}


def _hosts(one: Service) -> int:
    """Return by how many hosts the plan divides."""
    plan = one.get("/ops/budget", headers={"Authorization": f"Bearer {TOKEN}"}).json["postgres"]
    return next((line["number"] for line in plan["lines"] if line["name"] == "hosts"), 0)


def _go_on(hosts: list[Host]) -> None:
    """Wait until each worker has served two more."""
    before = [host.served() for host in hosts]

    def is_served() -> bool:
        return all(
            now >= then + 2
            for host, thens in zip(hosts, before, strict=True)
            for now, then in zip(host.served(), thens, strict=True)
        )

    wait_until(is_served, "all to serve", 60)


def _refused(server: Postgres) -> list[str]:
    log = server.log.read_text(errors="replace").splitlines()
    return [line for line in log if any(text in line for text in REFUSED)]

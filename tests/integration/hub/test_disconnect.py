"""A request whose client hung up while it waited: its work never starts, and it takes nothing."""

import socket
from collections.abc import Iterator

import gevent
import gevent.monkey
import pytest
from gevent.event import Event

from greenline.errors import ClientGone
from greenline.hub import disconnect
from greenline.postgres.pool import ConnectionPool
from tests.helpers.pools import Make, run
from tests.helpers.support import wait_until


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end of a connection, and ours."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        yield theirs, ours


def taken(pool: ConnectionPool) -> Event:
    """Take the pool's one connection, until the event is set."""
    release = Event()

    def hold() -> None:
        with pool.connection():
            release.wait()

    gevent.spawn(hold)
    wait_until(lambda: pool.stats()["active"] == 1, "the connection to be taken")
    return release


def serve(pool: ConnectionPool, ours: socket.socket, done: list[int]) -> None:
    disconnect.serve(ours)
    done.append(run(pool, "select 7"))


@pytest.mark.parametrize("how", ["close", "half close", "close with a request in the pipe"])
def test_who_hangs_up_while_it_waits_leaves_the_queue(
    make: Make, ends: tuple[socket.socket, socket.socket], how: str
) -> None:
    """It gets ClientGone at once, long before a connection becomes free."""
    pool, done, (theirs, ours) = make(1), [], ends
    release = taken(pool)
    waiting = gevent.spawn(serve, pool, ours, done)
    wait_until(lambda: pool.stats()["waiting"] == 1, "the request to wait")
    if "pipe" in how:
        theirs.sendall(b"GET / HTTP/1.1\r\n")
    if how == "half close":
        theirs.shutdown(socket.SHUT_WR)
    else:
        theirs.close()
    waiting.join(5)
    assert isinstance(waiting.exception, ClientGone)
    assert pool.stats()["waiting"] == 0
    release.set()
    assert run(pool, "select 8") == 8
    assert not done


def test_who_hung_up_before_it_had_to_wait_never_waits(
    make: Make, ends: tuple[socket.socket, socket.socket]
) -> None:
    """Only who has to wait is looked after, and then at once."""
    pool, (theirs, ours) = make(1), ends
    theirs.close()
    done: list[int] = []
    release = taken(pool)
    with pytest.raises(ClientGone):
        gevent.spawn(serve, pool, ours, done).get(timeout=40)
    release.set()
    wait_until(lambda: pool.stats()["idle"] == 1, "the connection to come back")
    gevent.spawn(serve, pool, ours, done).get(timeout=40)
    assert done == [7]


def test_who_sends_more_while_it_waits_is_still_there(
    make: Make, ends: tuple[socket.socket, socket.socket]
) -> None:
    """The next request of a pipeline is no hang-up, and is not read."""
    pool, done, (theirs, ours) = make(1), [], ends
    release = taken(pool)
    waiting = gevent.spawn(serve, pool, ours, done)
    wait_until(lambda: pool.stats()["waiting"] == 1, "the request to wait")
    theirs.sendall(b"more")
    gevent.sleep(0)
    gevent.sleep(0)
    assert pool.stats()["waiting"] == 1
    release.set()
    waiting.join(5)
    assert done == [7]
    assert ours.recv(10) == b"more"


def test_who_sends_more_and_then_hangs_up_takes_nothing(
    make: Make, ends: tuple[socket.socket, socket.socket]
) -> None:
    """It is found out when its turn comes, and the next one is served."""
    pool, done, (theirs, ours) = make(1), [], ends
    release = taken(pool)
    waiting = gevent.spawn(serve, pool, ours, done)
    next_one = gevent.spawn(run, pool, "select 8")
    wait_until(lambda: pool.stats()["waiting"] == 2, "two in the queue")
    theirs.sendall(b"more")
    gevent.sleep(0)
    gevent.sleep(0)
    theirs.close()
    release.set()
    gevent.joinall([waiting, next_one], timeout=40)
    assert isinstance(waiting.exception, ClientGone)
    assert not done
    assert next_one.value == 8


def test_a_hang_up_in_the_moment_of_the_hand_over_passes_it_on(
    make: Make, ends: tuple[socket.socket, socket.socket]
) -> None:
    """What was meant for the one who left serves the next, and is never lost."""
    pool, done, (theirs, ours) = make(1), [], ends
    with pool.connection():
        gone = gevent.spawn(serve, pool, ours, done)
        next_one = gevent.spawn(run, pool, "select 8")
        wait_until(lambda: pool.stats()["waiting"] == 2, "two in the queue")
        theirs.close()
    gone.join(5)
    next_one.join(5)
    assert next_one.value == 8
    assert isinstance(gone.exception, ClientGone) or done == [7]
    assert pool.stats()["waiting"] == 0
    assert pool.stats()["size"] == pool.stats()["idle"] == 1


@pytest.mark.parametrize("first", ["client", "server"])
def test_a_hang_up_and_a_hand_over_in_one_turn_of_the_loop_lend_it_once(
    make: Make, first: str
) -> None:
    """The hub was busy: it sees the client's end and the server's answer at the same time."""
    pool, lent = make(1), []
    if first == "server":
        run(pool, "select 1")  # its descriptor is the lower one then, and is looked at first
    theirs, ours = socket.socketpair()

    def work() -> None:
        with pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
            lent.append(id(conn))
            assert len(lent) == 1
            cursor.execute("select pg_sleep(0.05)")
            lent.remove(id(conn))

    is_queued = Event()

    def hold() -> None:
        with pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
            is_queued.wait()
            cursor.execute("select pg_sleep(0.1)")

    holder = gevent.spawn(hold)
    wait_until(lambda: pool.stats()["active"] == 1, "the connection to be taken")
    gone = gevent.spawn(serve, pool, ours, [])
    others = [gevent.spawn(work) for _ in range(3)]
    wait_until(lambda: pool.stats()["waiting"] == 4, "the queue")
    is_queued.set()
    gevent.sleep(0)  # the statement is sent
    theirs.close()
    gevent.monkey.get_original("time", "sleep")(0.2)
    gevent.joinall([holder, gone, *others], timeout=40)
    assert all(other.successful() for other in others)
    assert pool.stats()["size"] == pool.stats()["idle"] == 1
    ours.close()

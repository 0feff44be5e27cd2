"""
An upload of 10 MB that is refused before it is read: the client sees why, and never a reset.

1. It is refused by nginx, by the worker, by its limiter, and by the service without a look at the
   body; and asked for through nginx, through one that does not wait for the body's end, and
   straight, on both kinds of socket.
2. Sourced with its length or in chunks, by clients that wait for 100 Continue and that do not.
3. The same connection serves what follows, or it was said that it does not. Only an nginx that does
   not buffer says nothing of it and closes.

``GREENLINE_LONG_TESTS=1`` has 52 of them at once on each way, instead of 4.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import gevent
import psycopg2
import pytest

from tests.deploy.behind import Behind, behind
from tests.deploy.traffic import IS_LONG, Deployed, deployed
from tests.deploy.uploading import CLOSED, KINDS, NOT_KEPT, Address, Outcome, upload
from tests.helpers.front import Front, behind_proxies
from tests.helpers.keys import make_key
from tests.helpers.support import Databases, wait_until

EACH = 13 if IS_LONG else 1  # of each of the four kinds
LARGE = {"client_max_body_size 1m;": "client_max_body_size 12m;"}
AT_ONCE = {**LARGE, "proxy_request_buffering on;": "proxy_request_buffering off;"}
# For 10 MB 8 s, longer than the worker waits for a client that sends nothing any more.
SLOW_PAUSE_S = 0.05 if IS_LONG else 0.005
WRONG_KEY = "gl_wrong"
DIAGNOSTICS = {"GREENLINE_DIAGNOSTICS": "1", "WEB_CONCURRENCY": "1"}


@dataclass(frozen=True)
class Way:
    """How an upload comes to the service: *front* is the nginx on its way."""

    address: Address
    front: Behind | None = None
    is_buffered: bool = True


@contextmanager
def ways(place: Deployed) -> Iterator[list[Way]]:
    """Return six: two nginx and none, each on both kinds of socket."""
    port, path = place.running.port, place.socket
    with ExitStack() as stack:
        found = [Way(("127.0.0.1", port)), Way(str(path))]
        for changes in (LARGE, AT_ONCE):
            for front in (
                stack.enter_context(behind(ports=[port], changes=changes)),
                stack.enter_context(behind(sockets=[path], changes=changes)),
            ):
                found.append(Way(front.address, front, changes is LARGE))
        yield found


@pytest.fixture(scope="module")
def front(databases: Databases) -> Iterator[Front]:
    """A proxy before each database."""
    with behind_proxies(databases) as front:
        yield front


@pytest.fixture(scope="module")
def guarded(databases: Databases, front: Front) -> Iterator[Deployed]:
    """A service that asks for keys, whose one connection no request may wait for."""
    make_key(databases.environ, "the first", "read")
    environ = {"AUTH": "on", "POSTGRES_POOL_SIZE": "1", "POOL_MAX_WAITING": "0"}
    with deployed(
        "TCP", databases, environ={**front.environ, **DIAGNOSTICS, **environ}
    ) as place:  # fmt: skip
        yield place


@pytest.fixture(scope="module")
def guarded_ways(guarded: Deployed) -> Iterator[list[Way]]:
    with ways(guarded) as found:
        yield found


def assert_all_answered(
    place: Deployed, status: int, found: Sequence[Way], *, token: str = "", pause_s: float = 0.005
) -> Counter[int | str | None]:
    """Upload on all ways: each client saw *status*. Return what became of what followed."""
    path = f"/states?{os.urandom(6).hex()}"
    headers = [f"Authorization: Bearer {token}"] if token else []
    followed: Counter[int | str | None] = Counter()
    for some in [[way] for way in found] if IS_LONG else [found]:
        clients = [
            (way, gevent.spawn(upload, way.address, path, kind, pause_s=pause_s, headers=headers))
            for way in some
            for kind in KINDS * EACH
        ]
        for way, client in clients:
            outcome: Outcome = client.get(timeout=100)
            assert (outcome.status, outcome.failure) == (status, None)
            if way.is_buffered:
                assert outcome.then in (200, CLOSED)
                followed[outcome.then] += 1
            else:
                assert outcome.then == NOT_KEPT
    each = len(KINDS) * EACH
    for way in found:
        if way.front is not None:
            assert logged_by_nginx(way.front, path, each) == {(status, str(status)): each}
    assert logged_by_gunicorn(place, path, each * len(found)) == {str(status): each * len(found)}
    return followed


def logged_by_nginx(front: Behind, path: str, count: int) -> Counter[tuple[int, str]]:
    """Return the statuses that it answered *path* with, and those that it was answered."""

    def lines() -> Counter[tuple[int, str]]:
        entries = [entry for entry in front.entries() if entry["uri"] == path]
        return Counter((entry["status"], entry["upstream_status"]) for entry in entries)

    wait_until(lambda: lines().total() >= count, "nginx's lines")
    return lines()


def logged_by_gunicorn(place: Deployed, path: str, count: int) -> Counter[str]:
    """Return the statuses that the service answered *path* with."""
    line = re.compile(rf'"POST {re.escape(path)} HTTP/1.1" (\d+)')
    wait_until(lambda: len(line.findall(place.running.log)) >= count, "the service's lines")
    return Counter(line.findall(place.running.log))


@contextmanager
def held(place: Deployed, databases: Databases, token: str = "") -> Iterator[None]:
    """Keep a request in progress, which holds a connection."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    path = "/diagnostics/sleep?seconds=90"
    with closing(psycopg2.connect(databases.postgres)) as conn, conn.cursor() as cursor:
        conn.autocommit = True

        def sleeping(do: str) -> bool:
            cursor.execute(
                f"select {do} from pg_stat_activity"
                " where query ~ '^execute sleep' and state = 'active'"
            )
            return cursor.rowcount > 0

        asking = gevent.spawn(place.running.get, path, headers=headers, timeout_s=100)
        try:
            wait_until(lambda: sleeping("1"), "a request that sleeps")
            yield
        finally:
            wait_until(lambda: not sleeping("pg_cancel_backend(pid)"), "its end")
            asking.get(timeout=40)


def test_what_nginx_refuses(databases: Databases, guarded: Deployed) -> None:
    """413 at its own limit: the service hears nothing of it."""
    path = f"/states?{os.urandom(6).hex()}"
    for place in ({"ports": [guarded.running.port]}, {"sockets": [guarded.socket]}):
        with behind(**place) as front:  # type: ignore[arg-type]
            clients = [gevent.spawn(upload, front.address, path, kind) for kind in KINDS * EACH]
            outcomes = Counter(client.get(timeout=100) for client in clients)
            assert outcomes == {Outcome(413, then=CLOSED): len(clients)}
            assert logged_by_nginx(front, path, len(clients)) == {(413, ""): len(clients)}
    assert logged_by_gunicorn(guarded, path, 0) == {}


def test_what_the_service_refuses_for_its_size(
    databases: Databases, guarded: Deployed, guarded_ways: list[Way]
) -> None:
    """413 by MAX_CONTENT_LENGTH; the rest of the body is read, and the connection is kept."""
    token = make_key(databases.environ, "who uploads too much", "write")
    followed = assert_all_answered(guarded, 413, guarded_ways, token=token)
    assert set(followed) == {200}


def test_a_wrong_key(guarded: Deployed, guarded_ways: list[Way]) -> None:
    """401 before anything is read."""
    assert set(assert_all_answered(guarded, 401, guarded_ways, token=WRONG_KEY)) == {200}


def test_no_connection_is_free(
    databases: Databases, guarded: Deployed, guarded_ways: list[Way]
) -> None:
    """503 where the key cannot be looked up, because the pool's limits are reached."""
    token = make_key(databases.environ, "who waits for nothing", "write")
    holder = make_key(databases.environ, "who holds", "admin")
    with held(guarded, databases, holder):
        assert set(assert_all_answered(guarded, 503, guarded_ways, token=token)) == {200}


def test_the_database_is_down(
    databases: Databases, front: Front, guarded: Deployed, guarded_ways: list[Way]
) -> None:
    """503 where the key cannot be looked up, because Postgres is not there."""
    token = make_key(databases.environ, "who comes while it is down", "write")
    front.postgres.refuse()
    try:
        assert set(assert_all_answered(guarded, 503, guarded_ways, token=token)) == {200}
    finally:
        front.postgres.pass_on()


def test_the_limiter_is_full(databases: Databases) -> None:
    """503 by the worker; a client that waits for 100 Continue sends nothing and gets close."""
    environ = {**DIAGNOSTICS, "GREENLINE_MAX_IN_PROGRESS": "1", "GREENLINE_MAX_WAITING": "0"}
    with deployed("TCP", databases, environ=environ) as place, ways(place) as found:
        with held(place, databases):
            followed = assert_all_answered(place, 503, found)
        # The two straight ways have half of their clients wait.
        assert followed[CLOSED] == 2 * 2 * EACH


def test_the_worker_refuses_for_its_size(databases: Databases) -> None:
    """413 by GREENLINE_MAX_BODY_BYTES; a slow client is given its time to read that."""
    environ = {"GREENLINE_MAX_BODY_BYTES": "500000"}
    with deployed("TCP", databases, environ=environ) as place, ways(place) as found:
        followed = assert_all_answered(place, 413, found, pause_s=SLOW_PAUSE_S)
        assert followed[CLOSED] == 2 * len(KINDS) * EACH

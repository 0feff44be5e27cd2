"""greenline.postgres.connect on a real socket: its options, its limit, names that are none."""

import os
import socket
from contextlib import closing
from time import monotonic

import gevent.socket
import pytest

from greenline.errors import DeadlineExceeded, StoreDown
from greenline.hub import deadline
from greenline.postgres.connect import connect
from greenline.postgres.connection import Connection
from tests.helpers.pools import through
from tests.helpers.proxy import Proxy

SLACK_S = 1.0


def options(conn: Connection) -> dict[str, int]:
    """Return the socket options of the connection."""
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    with socket.socket(fileno=os.dup(conn.fileno())) as same:
        return {
            "SO_KEEPALIVE": same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            **{name: same.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names},
        }


def test_the_kernel_looks_after_the_peer(proxy: Proxy) -> None:
    """One that vanished is noticed within 20 s, not within the hours that are the default."""
    with closing(connect(through(proxy), 5.0)) as conn:
        assert options(conn) == {
            "SO_KEEPALIVE": 1,
            "TCP_KEEPIDLE": 10,
            "TCP_KEEPINTVL": 3,
            "TCP_KEEPCNT": 3,
            "TCP_USER_TIMEOUT": 20_000,
        }


def test_what_the_url_says_of_the_socket_wins(proxy: Proxy) -> None:
    """Settings in the URL are not overruled."""
    url = f"{through(proxy)}&keepalives_idle=77&tcp_user_timeout=5000"
    with closing(connect(url, 5.0)) as conn:
        found = options(conn)
    assert (found["TCP_KEEPIDLE"], found["TCP_USER_TIMEOUT"]) == (77, 5000)
    assert (found["TCP_KEEPINTVL"], found["TCP_KEEPCNT"]) == (3, 3)


def test_connecting_takes_no_longer_than_what_is_left_of_the_deadline(proxy: Proxy) -> None:
    """A server that hangs is given up in time."""
    proxy.deafen()
    started = monotonic()
    with deadline.limit(0.5), pytest.raises(DeadlineExceeded):
        connect(through(proxy), 30.0)
    assert monotonic() - started < 0.5 + SLACK_S


def test_a_name_is_given_up_before_the_request_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing but the connect's own limit ends the wait for a resolver, and it is in time."""
    monkeypatch.setattr(gevent.socket, "getaddrinfo", lambda *_, **__: gevent.sleep(60))
    with deadline.limit(0.5), pytest.raises(DeadlineExceeded):
        connect("postgresql://greenline@slow/greenline", 30.0)


def test_connecting_takes_no_longer_than_its_own_limit(proxy: Proxy) -> None:
    """However much time the request has."""
    proxy.deafen()
    with deadline.limit(30.0), pytest.raises(StoreDown, match=r"within 0\.2 s of connecting"):
        connect(through(proxy), 0.2)


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example"], ids=["empty label", "long label"])
def test_a_name_that_cannot_be_one_is_a_store_that_is_down(
    host: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is refused before anybody is asked, and no stack is written behind the caller's back."""
    with pytest.raises(StoreDown, match="does not resolve"):
        connect(f"postgresql://greenline@{host}/greenline", 5.0)
    assert capfd.readouterr().err == ""


def test_a_name_that_cannot_be_one_is_left_out(proxy: Proxy) -> None:
    """The other hosts of the URL are asked."""
    url = f"postgresql://greenline@a..b:1,127.0.0.1:{proxy.port}/greenline?sslmode=disable"
    with closing(connect(url, 5.0)) as conn:
        assert conn.pid

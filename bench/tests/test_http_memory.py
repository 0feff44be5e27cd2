"""The memory of idle connections and of a worker at rest."""

import http.client
import socket
from contextlib import closing
from pathlib import Path

import pytest

from bench import http_memory as bench
from bench.http_lineup import GRANIAN_WSGI, RIVAL, STOCK, THREADS
from bench.http_report import Http
from bench.report import OURS

MB = 1024 * 1024


@pytest.mark.parametrize(
    ("ours_bytes", "ours_mb", "kept"),
    [
        pytest.param(7_000, 65, [True, True], id="both"),
        pytest.param(7_001, 65, [False, True], id="idle"),
        pytest.param(7_000, 66, [True, False], id="at-rest"),
    ],
)
def test_memory_is_judged(
    ours_bytes: float, ours_mb: int, kept: list[bool], tmp_path: Path
) -> None:
    """At most uvicorn's for an idle connection, and 1.3 times stock gevent's at rest."""
    found = Http("http", tmp_path)
    idle = {OURS: ours_bytes, RIVAL: 7_000.0, GRANIAN_WSGI: 20_000.0, THREADS: 3_000.0}
    rest = {OURS: ours_mb * MB, STOCK: 50 * MB}
    verdicts = bench.judge(found, rest, idle, 10_000)
    assert [verdict.kept for verdict in verdicts] == kept
    (note,) = found.notes
    assert note.splitlines() == [
        f"- bytes for each of 10,000 idle connections: {OURS} {ours_bytes:,.0f}, "
        f"{RIVAL} 7,000, {GRANIAN_WSGI} 20,000, {THREADS} 3,000",
        f"- MB of a worker at rest, with its arbiter: {OURS} {ours_mb}.0, {STOCK} 50.0",
    ]


def test_each_server_keeps_an_idle_connection_for_long(tmp_path: Path) -> None:
    """gunicorn's two seconds are over before there are ten thousand."""
    peers = list(bench.peers())
    assert {peer.who for peer in peers} == {OURS, STOCK, RIVAL, GRANIAN_WSGI, THREADS}
    for peer in peers:
        command = peer.server(tmp_path).command
        assert any("keep-alive" in word or "header-read" in word for word in command)


def test_idle_connections_that_were_closed_are_counted() -> None:
    """One that the server closed, and one that its answer closes, are none."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ends = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(3)]
        accepted = []
        for end in ends[:2]:
            end.connect()
            accepted.append(listener.accept()[0])
        with closing(ends[0]), closing(ends[1]), closing(accepted[0]):
            assert bench.count_closed(ends) == 1
            accepted[1].close()
            # What its end sent is there at once, on the loopback.
            assert bench.count_closed(ends) == 2


def test_too_few_open_files_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It names the limit, before a server is started."""
    monkeypatch.setattr("bench.servers.resource.getrlimit", lambda _: (1024, 4096))
    with pytest.raises(bench.ServerError, match=r"10500 open files .* hard limit .* is 4096"):
        bench.measure(Http("http", tmp_path), tmp_path)


def test_an_idle_connection_of_ours_has_a_cost(tmp_path: Path) -> None:
    """A hundred of them are held by a real worker, which closes none."""
    (ours,) = (peer for peer in bench.peers() if peer.who == OURS)
    with ours.server(tmp_path) as server:
        assert 100 < bench.idle_bytes(OURS, server, 100) < 1_000_000

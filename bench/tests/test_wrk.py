"""wrk's figures, and the command that asks for them."""

import re
import stat
from pathlib import Path

import pytest

from bench import wrk
from greenline.errors import ConfigError


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program called wrk on PATH that keeps its arguments and prints what ``said`` holds."""
    program = tmp_path / "wrk"
    program.write_text('#!/bin/sh\ncd "${0%/*}"\nprintf "%s\\n" "$@" > arguments\ncat said\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def test_wrks_line_is_read() -> None:
    """Wrong and lost answers are reported beside the 200s, and are not in req/s."""
    result = wrk.parse("Running 1s test\n  9 requests\n1000 2000000 100 7 500 1500 2500\n", 10)
    assert result.answers == {"200": 900, "wrong": 100, "error": 7}
    assert (result.asked, result.clients, result.seconds) == (1007, 10, 2.0)
    assert (result.req_s, result.p50_ms, result.p99_ms, result.p999_ms) == (450.0, 0.5, 1.5, 2.5)


def test_wrks_line_of_right_answers_has_nothing_else() -> None:
    """A run in which all was answered has one status; one without answers no latency."""
    assert wrk.parse("1000 1000000 0 0 1 2 3\n", 10).answers == {"200": 1000}
    assert wrk.parse("1000 1000000 0 0 1 2 3\n", 10, 304).answers == {"304": 1000}
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
    said = (program / "arguments").read_text().replace("\n", " ").strip()
    assert re.match(r"-t 1 -c 100 -d 2 --timeout 20 -s .+wrk\.lua -- http://x/ GET 200$", said)


def test_the_script_is_given_the_request(program: Path) -> None:
    """Headers are wrk's own; the method, the right status and the body are the script's."""
    (program / "said").write_text("10 1000000 0 0 1 2 3\n")
    headers = {"Cookie": "a=1; b=2", "X-Y": "z"}
    wrk.run("http://x/", 1, 1, method="POST", headers=headers, body="{ }", status=404)
    said = (program / "arguments").read_text().splitlines()
    assert said[-9:] == [
        "-H", "Cookie: a=1; b=2", "-H", "X-Y: z", "--", "http://x/", "POST", "404", "{ }"
    ]  # fmt: skip


def test_a_failing_wrk_is_an_error(program: Path) -> None:
    """wrk's own failure is reported with its words."""
    (program / "wrk").write_text("#!/bin/sh\necho unable to connect >&2\nexit 1\n")
    with pytest.raises(wrk.WrkError, match="unable to connect"):
        wrk.run("http://x/", 10, 1)


def test_no_wrk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why it cannot be had."""

    def program(name: str) -> None:
        raise ConfigError(f"{name} is not installed, and there is no apt-get to fetch it")

    monkeypatch.setattr(wrk.debian, "program", program)
    with pytest.raises(wrk.WrkError, match="wrk is not installed"):
        wrk.run("http://x/", 10, 1)

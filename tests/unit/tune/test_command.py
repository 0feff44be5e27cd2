"""How greenline tune ends."""

import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from greenline.cli import main
from greenline.tune import choose
from greenline.tune.command import INTERRUPTED
from greenline.tune.tuner import Tuner
from tests.helpers import tuned


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal that does nothing here."""
    before = signal.signal(request.param, lambda *_: None)
    yield request.param
    signal.signal(request.param, before)


def test_a_signal_ends_it_as_ctrl_c_does(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has started ends too, as it does at each exception."""
    here = signal.getsignal(number)
    monkeypatch.setattr(Tuner, "run", lambda _: signal.raise_signal(number))
    done = CliRunner().invoke(main, ["tune", "shop:app", "--load", "/"])
    assert done.exit_code == INTERRUPTED, done.output
    assert "interrupted\nnothing is known so far" in done.stderr
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert signal.getsignal(number) == here


def test_a_file_that_cannot_be_written_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurement has taken minutes."""
    monkeypatch.setattr(Tuner, "run", lambda _: None)
    monkeypatch.setattr(Tuner, "result", lambda _: tuned.result())
    (tmp_path / "taken").mkdir()
    report, taken = tmp_path / "report.html", tmp_path / "none.json"
    taken.symlink_to(tmp_path / "taken" / "gone" / "none.json")
    given = ["tune", "shop:app", "--load", "/", "--json", str(taken), "--report", str(report)]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 1
    assert f"{taken}: No such file or directory" in done.stderr
    assert f"{report} is written" in done.stderr
    assert report.stat().st_size > 10_000
    twice = CliRunner().invoke(main, [*given[:-1], str(taken)])
    assert (twice.exit_code, "is given for two files" in twice.stderr) == (2, True)


def test_the_settings_say_what_spoils_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has ended early writes its file all the same; with GREENLINE_POOL it has that."""
    result = msgspec.structs.replace(tuned.result(), warnings=["The run has ended early."])
    monkeypatch.setattr(Tuner, "run", lambda _: None)
    monkeypatch.setattr(Tuner, "result", lambda _: result)
    file = tmp_path / "gunicorn.conf.py"
    CliRunner().invoke(main, ["tune", "shop:app", "--load", "/", "--write", str(file)])
    assert "# Warning: The run has ended early." in file.read_text()
    steps = result.sweeps[0].steps
    assert "GREENLINE_POOL" not in choose.pool(steps, 2).environment
    monkeypatch.setenv("GREENLINE_POOL", "1")
    assert choose.pool(steps, 2).environment["GREENLINE_POOL"] == "1"

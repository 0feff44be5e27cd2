"""How greenline tune ends."""

import signal
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from greenline.cli import main
from greenline.tune.command import INTERRUPTED
from greenline.tune.tuner import Tuner


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
    assert "interrupted: this is what is known so far" in done.stderr
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert signal.getsignal(number) == here

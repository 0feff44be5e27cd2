"""The second signal of a Ctrl-C."""

import pytest
from gunicorn.config import Config

from greenline.worker import GreenWorker


def test_only_the_first_of_two_signals_exits() -> None:
    """Both were handled before either had replaced the handlers: the interpreter is ending."""
    calls: list[object] = []
    worker = GreenWorker.__new__(GreenWorker)
    worker.cfg = Config()
    worker.cfg.set("worker_int", calls.append)
    with pytest.raises(SystemExit):
        worker._quit()
    worker._quit()
    assert calls == [worker]

import threading
from queue import SimpleQueue

import pytest
from gevent.hub import Hub

from greenline.hub import handlers, lock_waits
from greenline.hub.thread_locks import Lock


@pytest.fixture
def noted_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of waits are noted, as in a worker."""
    for kind, name in ((Hub, "wait"), (SimpleQueue, "_wait"), (threading.Event, "wait")):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    handlers.install()
    monkeypatch.setattr(Lock, "_wait", lock_waits._counted_wait)

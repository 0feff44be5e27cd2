"""greenline.worker.arbiter on an arbiter that forks nothing."""

import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.arbiter import Arbiter

from greenline.telemetry import shared_memory
from greenline.worker import arbiter


class Server:
    """What a reload needs of gunicorn's arbiter, with a dirty arbiter and an old worker."""

    handle_hup = Arbiter.handle_hup
    master_name = "Master"
    dirty_arbiter_pid = 4711

    def __init__(self) -> None:
        self.log: Any = self
        self.START_CTX: dict[str, Any] = {"args": sys.argv}
        self.sent: list[int] = []
        self.cfg: Any = SimpleNamespace(reload=False, statsd_host=None)

    def info(self, *_: object) -> None: ...

    def manage_workers(self) -> None: ...

    def reap_workers(self) -> None: ...

    def stop(self, graceful: bool = True) -> None: ...

    def reexec(self) -> None: ...

    def reload(self) -> None:
        self.reap_workers()  # in the wait for the old worker

    def kill_dirty_arbiter(self, sent: int) -> None:
        self.sent.append(sent)


@pytest.mark.skipif(
    not hasattr(Arbiter, "kill_dirty_arbiter"), reason="that gunicorn has no dirty arbiter"
)
def test_a_reload_reaches_the_dirty_arbiter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for the old workers is left out, and what gunicorn does after it is not."""

    class Loadable:
        """A dry run that has succeeded."""

        def __init__(self, *_: object, **__: object) -> None: ...

        def status(self) -> int:
            return 0

    server = Server()
    monkeypatch.setattr(arbiter, "DryRun", Loadable)
    memory = shared_memory.share()
    arbiter.Reloads(server, memory)
    server.handle_hup()
    assert server.sent == []
    server.manage_workers()
    assert server.sent == [signal.SIGHUP]
    os.close(memory)

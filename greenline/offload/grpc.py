"""
Let gRPC wait in native threads, by its own support for gevent, which is switched on at its import.

Without that a call waits in C for a thread that is a greenlet here: several at once wait for ever.
``grpc.aio`` has a thread that waits in C for all calls: it stays a native one.
"""

import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from types import ModuleType
from typing import Any

import gevent
from gevent.monkey import get_original
from gevent.threadpool import ThreadPool

from greenline.offload.imports import after_import

MAX_CALLS = 1_000  # each call keeps a thread until its end
IDLE_S = 10
JOIN_POLL_S = 0.005


def patch() -> None:
    """Switch it on when gRPC is imported; call this after gevent's patches, in the main thread."""
    after_import("grpc._cython.cygrpc", partial(_switch_on, gevent.get_hub()))


def _switch_on(hub: Any, module: ModuleType) -> None:
    if hasattr(module, "init_grpc_gevent"):
        module.init_grpc_gevent()
        # A hub's own pool has ten threads, which look up host names: the eleventh call would wait.
        # And a native thread that imports gRPC has another hub.
        module.g_gevent_threadpool = ThreadPool(MAX_CALLS, hub, idle_task_timeout=IDLE_S)  # type: ignore[attr-defined]
        module.threading = _Threading(module.PollerCompletionQueue)  # type: ignore[attr-defined]


class _Threading(ModuleType):
    """The module threading, with a native thread for the poller of ``grpc.aio``."""

    def __init__(self, poller: type) -> None:
        super().__init__(threading.__name__)
        self._poller = poller
        self.Thread = self._thread

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    def _thread(self, group: Any = None, target: Any = None, *args: Any, **more: Any) -> Any:
        if isinstance(getattr(target, "__self__", None), self._poller):
            return _NativeThread(target)
        return threading.Thread(group, target, *args, **more)


class _NativeThread:
    def __init__(self, target: Callable[[], object]) -> None:
        self._target = target
        self._has_ended = False

    def start(self) -> None:
        get_original("_thread", "start_new_thread")(self._run, ())

    def join(self, timeout: float) -> None:
        until_s = monotonic() + timeout
        while not self._has_ended and monotonic() < until_s:
            gevent.sleep(JOIN_POLL_S)

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._has_ended = True

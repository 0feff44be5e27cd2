"""
Let gRPC wait in native threads, by its own support for gevent, which is switched on at its import.

Without that a call waits in C for a thread that is a greenlet here: several at once wait for ever.
``grpc.aio`` does so all the same.
"""

from functools import partial
from types import ModuleType
from typing import Any

import gevent
from gevent.threadpool import ThreadPool

from greenline.offload.imports import after_import

MAX_CALLS = 1_000  # each call keeps a thread until its end
IDLE_S = 10


def patch() -> None:
    """Switch it on when gRPC is imported; call this after gevent's patches, in the main thread."""
    after_import("grpc._cython.cygrpc", partial(_switch_on, gevent.get_hub()))


def _switch_on(hub: Any, module: ModuleType) -> None:
    if hasattr(module, "init_grpc_gevent"):
        module.init_grpc_gevent()
        # A hub's own pool has ten threads, which look up host names: the eleventh call would wait.
        # And a native thread that imports gRPC has another hub.
        module.g_gevent_threadpool = ThreadPool(MAX_CALLS, hub, idle_task_timeout=IDLE_S)  # type: ignore[attr-defined]

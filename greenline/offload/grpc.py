"""
Let gRPC wait in native threads, by its own support for gevent, which is switched on at its import.

Without that a call waits in C for a thread that is a greenlet here: several at once wait for ever.
"""

from types import ModuleType

from gevent.threadpool import ThreadPool

from greenline.offload.imports import after_import

MAX_CALLS = 1_000  # each call keeps a thread until its end


def patch() -> None:
    """Switch it on when gRPC is imported; call this after gevent's patches."""
    after_import("grpc", _switch_on)


def _switch_on(_: ModuleType) -> None:
    from grpc._cython import cygrpc
    from grpc.experimental import gevent

    gevent.init_gevent()
    # The hub's own pool has ten threads, which look up host names: the eleventh call would wait.
    if hasattr(cygrpc, "g_gevent_threadpool"):
        cygrpc.g_gevent_threadpool = ThreadPool(MAX_CALLS)

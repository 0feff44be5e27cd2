"""
gunicorn's side: the worker class, and what runs in gunicorn's arbiter.

:class:`GreenWorker`, by its name in gunicorn's settings, is the public face; the modules are
internal.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from greenline.worker.worker import GreenWorker

__all__ = ["GreenWorker"]


def __getattr__(name: str) -> Any:
    # At the first use: an application that asks whether the arbiter stops needs no worker class.
    if name != "GreenWorker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from greenline.worker.worker import GreenWorker

    return GreenWorker

"""
gunicorn's side: the worker class, and what runs in gunicorn's arbiter.

:class:`GreenWorker`, by its name in gunicorn's settings, is the public face; the modules are
internal. The service imports ``arbiter``, and its gunicorn.conf.py ``hooks``, ``preflight`` and
``dry_run``.
"""

from typing import TYPE_CHECKING

from greenline import lazy

if TYPE_CHECKING:
    from greenline.worker.worker import GreenWorker

__all__ = ["GreenWorker"]

# At the first use: an application that asks whether the arbiter stops needs no worker class.
__getattr__ = lazy.attributes(__name__, {"GreenWorker": "worker"})

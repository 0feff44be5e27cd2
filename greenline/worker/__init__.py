"""gunicorn's side: the worker class, and what runs in gunicorn's arbiter."""

from greenline.worker.worker import GreenWorker

__all__ = ["GreenWorker"]

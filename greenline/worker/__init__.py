"""Extend gunicorn: the worker class, and the functions that run in gunicorn's arbiter."""

from greenline.worker.worker import GreenWorker

__all__ = ["GreenWorker"]

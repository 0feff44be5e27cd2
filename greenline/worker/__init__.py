"""gunicorn's side: the worker class, and what runs in gunicorn's arbiter."""

from greenline.worker.worker import GreenWorker

# Its public name, which configurations have: check-deploy looks for it among a class's bases.
GreenWorker.__module__ = __name__

__all__ = ["GreenWorker"]

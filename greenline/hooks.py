"""
What gunicorn's hooks call in a worker.

A worker whose application could not be loaded has none: a reloading one answers with the stack
and waits for the next change of the code.
"""

from typing import Any


def start(worker: Any) -> None:
    """Let the application of *worker* connect, in the background."""
    resources = _resources(worker)
    if resources is not None:
        resources.start()


def close(worker: Any) -> None:
    """Close what the application of *worker* opened."""
    resources = _resources(worker)
    if resources is not None:
        resources.close()


def _resources(worker: Any) -> Any:
    application = getattr(worker, "wsgi", None)
    return getattr(application, "extensions", {}).get("greenline")

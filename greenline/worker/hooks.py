"""
What gunicorn's hooks call in a worker, and the trial of a start before there is one.

A worker whose application could not be loaded has none: a reloading one answers with the stack
and waits for the next change of the code.
"""

from typing import Any


def start(worker: Any) -> None:
    """Let the application of *worker* connect, in the background."""
    resources = _resources(getattr(worker, "wsgi", None))
    if resources is not None:
        resources.start()


def close(worker: Any) -> None:
    """Close what the application of *worker* opened."""
    resources = _resources(getattr(worker, "wsgi", None))
    if resources is not None:
        resources.close()


def on_dry_run(application: Any) -> None:
    """
    Let *application*, which was loaded before the workers are started, say whether they may be.

    Raises:
        ConfigError: it says why not.
    """
    resources = _resources(application)
    if resources is not None:
        resources.on_dry_run()


def _resources(application: Any) -> Any:
    return getattr(application, "extensions", {}).get("greenline")

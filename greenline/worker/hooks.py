"""Start and close the application's resources in gunicorn's hooks, and check it in a dry run."""

from typing import Any


def start(worker: Any) -> None:
    """Start the resources of the worker's application, in the background."""
    # Without an application there are none: with --reload, a worker whose code has a syntax error
    # answers with the traceback and waits for the next change.
    resources = _resources(getattr(worker, "wsgi", None))
    if resources is not None:
        resources.start()


def close(worker: Any) -> None:
    """Close the resources of the worker's application."""
    resources = _resources(getattr(worker, "wsgi", None))
    if resources is not None:
        resources.close()


def on_dry_run(application: Any) -> None:
    """
    Ask *application*, loaded in a dry run, whether the workers may start.

    :raises ConfigError: the reason why not.
    """
    resources = _resources(application)
    if resources is not None:
        resources.on_dry_run()


def _resources(application: Any) -> Any:
    return getattr(application, "extensions", {}).get("greenline")

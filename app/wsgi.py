"""The entry point: gunicorn's worker imports ``app`` from here, after the fork."""

from gunicorn.errors import AppImportError

from greenline import patch
from greenline.errors import ConfigError
from greenline.hub.patching import require_patched


class Refused(AppImportError, RuntimeError):
    """
    Stop the start with one line in the log.

    gunicorn's workers print an AppImportError as one line, and its arbiter a RuntimeError.
    """


try:
    # Before the imports of the application. An unpatched module, or psycopg2 without the hook,
    # blocks all greenlets of the worker at each wait.
    require_patched()
    patch.hook_psycopg2()

    import logging

    from app.factory import create_app
    from config import load

    settings = load()
    # As gunicorn's lines, with the name of the logger.
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s [%(process)d] [%(levelname)s] %(name)s: %(message)s",
        datefmt="[%Y-%m-%d %H:%M:%S %z]",
    )
    app = create_app(settings)
except ConfigError as error:
    raise Refused(f"greenline: {error}") from error

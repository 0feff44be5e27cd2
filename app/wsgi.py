"""Entry: gunicorn's worker imports ``app`` from here, after the fork."""

from greenline import patching
from greenline.errors import ConfigError

try:
    patching.require_patched()
    patching.hook_psycopg2()

    import logging

    from app.factory import create_app
    from config import load

    settings = load()
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="[%(process)d] [%(levelname)s] %(name)s: %(message)s",
    )
    app = create_app(settings)
except ConfigError as error:
    from gunicorn.errors import AppImportError

    # gunicorn prints this as one line without a stack, and stops.
    raise AppImportError(f"greenline: {error}") from error

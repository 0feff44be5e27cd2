"""The same application on gunicorn's own gevent worker."""

from greenline.patch import hook_psycopg2

hook_psycopg2()

from tests.e2e.opened import app  # noqa: E402

__all__ = ["app"]

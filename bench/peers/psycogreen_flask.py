"""
Our service with psycogreen's wait callback, and a proof that it waits through that one.

The callback is chosen, and PREPARE left out, by the settings in ``bench/lineup.py``: nothing else
differs from ours.
"""

from psycopg2.extensions import get_wait_callback

from app.wsgi import app

__all__ = ["app"]

callback = get_wait_callback()
if getattr(callback, "__module__", None) != "psycogreen.gevent":
    raise RuntimeError(f"psycopg2 waits through {callback}, not through psycogreen")

"""
A green runtime for synchronous WSGI applications on gunicorn's gevent workers.

- ``gunicorn -k greenline.worker.GreenWorker legacy:app`` hosts an application as it is.
- ``greenline.postgres.open()`` and ``greenline.mongo.open()`` open pools whose connections fit into
  what the server allows the workers of all hosts.
- ``GREENLINE_POOL=1`` makes ``psycopg2.connect`` of unmodified code a checkout from such a pool;
  ``greenline.django.postgresql`` and ``greenline.sqlalchemy.create_engine`` are engines on it. Its
  ``MongoClient`` objects share connections.
- ``greenline.lifecycle.Resources`` starts, checks and closes them with the worker;
  ``greenline.budget.Plan`` is what each may hold.
- ``greenline.patch.patch_all()``, before all other imports, lets a script use them.
- ``greenline.hub.deadline.limit(2.0)`` limits the waiting in a ``with`` block, in seconds.
- ``greenline.flask.Flask`` is a ``flask.Flask`` with less work for each request;
  ``greenline.flask.adopt(app)`` makes one of an object that is there.
- ``greenline.cache.Cache`` keeps expensive values, and loads a key once for all that ask at once;
  ``greenline.flask.cached.cached`` does so for the responses of a view.
- ``greenline.telemetry.counters.totals()`` returns the counts of all workers.
- ``greenline.hub.trace_context.headers()`` returns the headers that pass a trace on.
- ``greenline.errors`` has what all of these raise.

All else is internal. The commands are those of ``greenline --help``.
"""

from greenline import lazy

__version__ = "0.1.0"

# Without those that cannot be imported without a library: they would break the star import.
__all__ = [
    "budget", "errors", "hub", "lifecycle", "mongo", "patch", "postgres", "telemetry", "worker",
]  # fmt: skip

# At the first use: gunicorn's arbiter imports modules of this package without the drivers.
__getattr__ = lazy.modules(__name__, {*__all__, "cache", "django", "flask", "sqlalchemy"})

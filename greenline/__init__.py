"""
A green runtime for synchronous WSGI applications on gunicorn's gevent workers.

``gunicorn -k greenline.worker.GreenWorker your.wsgi:app`` hosts any application as it is.

``greenline.postgres.open()`` and ``greenline.mongo.open()`` open pools that fit into what the
servers allow the workers of all hosts. ``greenline.patch.patch_all()`` makes a script green.
``greenline.flask.Flask`` is a faster ``flask.Flask``. ``greenline.errors`` has what they raise.
All else is internal.
"""

__version__ = "0.1.0"

__all__ = ["errors", "flask", "mongo", "patch", "postgres", "worker"]

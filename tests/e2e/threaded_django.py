"""A Django project in one file that keeps its connection to Postgres per thread."""

import os
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import JsonResponse
from django.urls import path

url = urlsplit(os.environ["DATABASE_URL"])
query = {name: values[0] for name, values in parse_qs(url.query).items()}
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="for this test only",  # noqa: S106
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],  # it sets Content-Length
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path.lstrip("/"),
            "USER": url.username,
            "PASSWORD": url.password or "",
            "HOST": url.hostname or query["host"],
            "PORT": url.port or query.get("port", ""),
            "CONN_MAX_AGE": 60,
            "OPTIONS": {"application_name": "threaded"},
        }
    },
)


now = {"in_progress": 0, "backends": 0}
highest = dict(now)


def sleep(request: Any, milliseconds: int) -> JsonResponse:
    """Sleep in Postgres; answer with the number of this application's backends."""
    now["in_progress"] += 1
    highest["in_progress"] = max(highest["in_progress"], now["in_progress"])
    try:
        with connection.cursor() as cursor:
            cursor.execute("select pg_sleep(%s)", [milliseconds / 1000])
            cursor.execute("select count(*), pg_backend_pid() from pg_stat_activity "
                           "where datname = current_database() "
                           "and application_name = 'threaded'")  # fmt: skip
            backends, pid = cursor.fetchone()
    finally:
        now["in_progress"] -= 1
    highest["backends"] = max(highest["backends"], backends)
    return JsonResponse({"backends": backends, "pid": pid, "highest": highest})


def pid(request: Any) -> JsonResponse:
    """Answer with the process id, without the database."""
    return JsonResponse({"pid": os.getpid()})


urlpatterns = [path("pid", pid), path("sleep/<int:milliseconds>", sleep)]
application = get_wsgi_application()

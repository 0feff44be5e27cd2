"""
A Django project in one file that keeps its connections if ``KEEP`` is set, on Postgres.

Django has a connection for each thread. ``/work`` is what the one with SQLAlchemy's pool does.
"""

import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from psycopg2.extensions import parse_dsn

options = parse_dsn(os.environ["DATABASE_URL"])
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="for this bench only",  # noqa: S106
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": options.pop("dbname"),
            "OPTIONS": options,
            "CONN_MAX_AGE": None if "KEEP" in os.environ else 0,
        },
    },
)


def ready(_: HttpRequest) -> HttpResponse:
    """Answer without the database."""
    return HttpResponse("right\n")


def work(_: HttpRequest) -> HttpResponse:
    """Do three statements in a transaction, one of which takes a while."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("select count(*) from pg_class")
        cursor.execute("select pg_sleep(0.005)")
        cursor.execute("select count(*) from pg_type")
    return HttpResponse("right\n")


urlpatterns = [path("ready", ready), path("work", work)]
app = get_wsgi_application()

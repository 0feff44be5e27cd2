"""
A Django project in one file, with transfers between accounts, sessions, the admin, a stream, and
views that catch an IntegrityError.

``python -m tests.e2e.pooled_django`` makes its tables, and prints the key of an admin's session.
"""

# ruff: noqa: E402  (models come after the settings)

import os
from contextlib import suppress
from typing import Any

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from psycopg2.extensions import parse_dsn

ACCOUNTS, BALANCE = 20, 1000
options = parse_dsn(os.environ["DATABASE_URL"])
max_age = os.environ.get("POOLED_MAX_AGE", "0")
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="for this test only",  # noqa: S106
    USE_TZ=True,
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",  # it sets Content-Length
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ],
            },
        },
    ],
    DATABASES={
        "default": {
            "ENGINE": os.environ["POOLED_ENGINE"],
            "NAME": options.pop("dbname"),
            "OPTIONS": options,
            "CONN_MAX_AGE": None if max_age == "None" else int(max_age),
            "ATOMIC_REQUESTS": True,
            "TIME_ZONE": "Europe/Berlin",
        },
    },
)
django.setup()

from django.contrib import admin
from django.db import IntegrityError, connection, models, transaction
from django.db.models.signals import post_save
from django.dispatch import receiver


class Account(models.Model):
    """What transfers change."""

    balance = models.IntegerField()

    class Meta:
        app_label = "pooled"


class Transfer(models.Model):
    """One for each request that was answered."""

    number = models.BigIntegerField()

    class Meta:
        app_label = "pooled"


class Seen(models.Model):
    """What the signal writes for each transfer."""

    transfer = models.BigIntegerField()

    class Meta:
        app_label = "pooled"


class Once(models.Model):
    """What is inserted twice."""

    key = models.TextField(unique=True)

    class Meta:
        app_label = "pooled"


@receiver(post_save, sender=Transfer)
def note(instance: Transfer, **_: Any) -> None:
    """Note the transfer in the same transaction."""
    Seen.objects.create(transfer=instance.pk)


def transfer(request: Any) -> JsonResponse:
    """Move one from an account to another, under locks that are taken in order."""
    number = int(request.META["QUERY_STRING"])
    give, take = number % ACCOUNTS + 1, number * 7 % ACCOUNTS + 1
    with transaction.atomic():
        locked = Account.objects.select_for_update().filter(pk__in=(give, take)).order_by("pk")
        found = {account.pk: account for account in locked}
        found[give].balance -= 1
        found[give].save()
        found[take].balance += 1
        found[take].save()
        made = Transfer.objects.create(number=number)
    return JsonResponse({"transfer": made.pk})


def clash_inside(request: Any) -> HttpResponse:
    """Catch an IntegrityError at a savepoint: what is written before and after it stays."""
    key = f"inside {request.META['QUERY_STRING']}"
    Once.objects.create(key=key)
    with suppress(IntegrityError), transaction.atomic():
        Once.objects.create(key=f"{key} is lost")
        Once.objects.create(key=key)
    Once.objects.create(key=f"{key} again")
    return HttpResponse("written")


@transaction.non_atomic_requests
def clash_outside(request: Any) -> HttpResponse:
    """Catch an IntegrityError outside of its transaction, which is lost; write once more."""
    key = f"outside {request.META['QUERY_STRING']}"
    with suppress(IntegrityError), transaction.atomic():
        Once.objects.create(key=f"{key} is lost")
        Once.objects.create(key=key)
        Once.objects.create(key=key)
    Once.objects.create(key=key)
    return HttpResponse("written")


def visit(request: Any) -> HttpResponse:
    """Begin a session, which is a row, and count in it."""
    request.session["visits"] = request.session.get("visits", 0) + 1
    return HttpResponse(request.session["visits"])


@transaction.non_atomic_requests
def stream(request: Any) -> StreamingHttpResponse:
    """Stream all accounts from a cursor on the server's side."""
    rows = Account.objects.order_by("pk").iterator(chunk_size=3)
    answer = StreamingHttpResponse(f"{account.pk}\n" for account in rows)
    answer["Content-Length"] = sum(len(f"{pk}\n") for pk in range(1, ACCOUNTS + 1))
    return answer


def session(request: Any) -> JsonResponse:
    """Answer with what the session of the connection has."""
    with connection.cursor() as cursor:
        cursor.execute("select current_setting('TimeZone'), current_setting('statement_timeout')")
        zone, timeout = cursor.fetchone()
    return JsonResponse({"zone": zone, "timeout": timeout})


urlpatterns = [
    path("transfer", transfer),
    path("clash-inside", clash_inside),
    path("clash-outside", clash_outside),
    path("visit", visit),
    path("stream", stream),
    path("session", session),
    path("admin/", admin.site.urls),
]
application = get_wsgi_application()

if __name__ == "__main__":
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.auth.models import User
    from django.contrib.sessions.backends.db import SessionStore
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        for model in (Account, Transfer, Seen, Once):
            editor.create_model(model)
    Account.objects.bulk_create(Account(balance=BALANCE) for _ in range(ACCOUNTS))
    user = User.objects.create_superuser("admin", password="admin")  # noqa: S106
    of_admin = SessionStore()
    of_admin[SESSION_KEY] = str(user.pk)
    of_admin[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    of_admin[HASH_SESSION_KEY] = user.get_session_auth_hash()
    of_admin.save()
    print(of_admin.session_key)

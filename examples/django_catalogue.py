"""
A Django project in one file, with a model, on Greenline's worker.
It is on Postgres with DATABASE_URL in the environment, and on a file of sqlite's without. Before,
it ran as ``gunicorn --threads 8 django_catalogue:application``. Typed in examples/, these install
greenline from this checkout, and create the table unless it is there:

    pip install .. django psycopg2-binary
    python django_catalogue.py
    GREENLINE_POOL=1 gunicorn -k greenline.worker.GreenWorker django_catalogue:application
    curl -d title=Tehanu http://127.0.0.1:8000/books
    curl http://127.0.0.1:8000/books
"""

import os

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path

if url := os.environ.get("DATABASE_URL"):
    from psycopg2.extensions import parse_dsn

    options = parse_dsn(url)
    name = options.pop("dbname")
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": name, "OPTIONS": options}
else:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": "catalogue.sqlite3"}

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY=b"for this example only",
    DATABASES={"default": database},
)
django.setup()

from django.db import connection, models


class Book(models.Model):
    title = models.CharField(max_length=200)

    class Meta:
        app_label = "catalogue"


def books(request):
    if request.method == "POST":
        Book.objects.create(title=request.POST["title"])
    return JsonResponse({"titles": [book.title for book in Book.objects.order_by("id")]})


urlpatterns = [path("books", books)]
application = get_wsgi_application()

if __name__ == "__main__" and "catalogue_book" not in connection.introspection.table_names():
    with connection.schema_editor() as editor:
        editor.create_model(Book)

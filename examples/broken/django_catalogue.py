"""../django_catalogue.py with two mistakes, which ``greenline doctor`` finds."""

import signal
import time

from django.db import connection, transaction
from django.http import JsonResponse
from django.urls import path


def books(request):
    signal.alarm(5)  # expect: GL208
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("select title from catalogue_book for update")
        time.sleep(1)  # expect: GL215
        return JsonResponse({"titles": [title for (title,) in cursor.fetchall()]})


urlpatterns = [path("books", books)]

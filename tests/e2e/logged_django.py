"""A Django project in one module, with Django's own way to configure logging."""

from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="of-a-test",  # noqa: S106
    LOGGING={
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"console": {"class": "logging.StreamHandler"}},
        "root": {"handlers": ["console"], "level": "INFO"},
    },
)


def fail(request: HttpRequest) -> HttpResponse:
    """Fail, which Django logs with the request as an extra field."""
    raise ValueError("broken")


urlpatterns: list[Any] = [path("raise", fail)]
app = get_wsgi_application()

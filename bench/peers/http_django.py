"""A small JSON object from a Django project in one file, with Django's own choice of middleware."""

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="for this bench only",  # noqa: S106
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ],
)


def answer(_: HttpRequest) -> JsonResponse:
    """Answer."""
    return JsonResponse({"status": "ok"})


urlpatterns = [path("", answer)]
app = get_wsgi_application()

import requests
from django.db import transaction

DATABASES = {"default": {"NAME": "shop", "ATOMIC_REQUESTS": True}}


def pay(request):
    requests.post("http://localhost", timeout=5)  # expect: GL214
    return notified(request.path)


@transaction.non_atomic_requests
def show(request):
    return requests.get("http://localhost", timeout=5)  # not: GL214


def notified(path):
    return requests.post(path, timeout=5)  # expect: GL214


def reminded(path):
    return requests.post(path, timeout=5)

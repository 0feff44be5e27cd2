import requests
from django.db import transaction


def pay(request):
    with transaction.atomic():
        request.user.save()
    requests.post("http://localhost", timeout=5)  # not: GL214

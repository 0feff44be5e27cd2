import requests
from django.db import transaction


def pay(request):
    with transaction.atomic():
        request.user.save()
        transaction.on_commit(lambda: requests.post("http://localhost", timeout=5))

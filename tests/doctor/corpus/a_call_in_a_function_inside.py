import requests
from django.db import transaction


def pay(request):
    with transaction.atomic():

        def notify():
            requests.post("http://localhost", timeout=5)

        transaction.on_commit(notify)

import requests
from django.db import transaction
from django.http import HttpResponse


def pay(request):
    with transaction.atomic():
        request.user.save()
        requests.post("http://localhost", timeout=5)  # expect: GL214
    return HttpResponse("")

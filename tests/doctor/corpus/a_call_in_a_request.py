import requests

DATABASES = {"default": {"NAME": "shop"}}
DATABASES["default"]["ATOMIC_REQUESTS"] = False


def pay(request):
    return requests.post("http://localhost", timeout=5)

import requests

DATABASES = {"default": {"NAME": "shop"}}
DATABASES["default"]["ATOMIC_REQUESTS"] = True


def pay(request):
    return requests.post("http://localhost", timeout=5)  # expect: GL214

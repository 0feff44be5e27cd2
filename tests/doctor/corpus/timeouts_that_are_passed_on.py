import requests

OPTIONS = {"timeout": 5}


def fetch(url, **options):
    return requests.get(url, **options), requests.post(url, **OPTIONS)

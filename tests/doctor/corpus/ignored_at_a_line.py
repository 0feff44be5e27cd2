import requests


def fetch(url):
    return requests.get(url)  # greenline: ignore[GL213]

import requests


def fetch(url):
    return requests.get(url)  # greenline: ignore[GL211]  # expect: GL213

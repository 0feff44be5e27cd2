import requests
from requests.adapters import HTTPAdapter


class TimeoutAdapter(HTTPAdapter):
    def send(self, request, **options):
        options["timeout"] = 5
        return super().send(request, **options)


session = requests.Session()
session.mount("https://", TimeoutAdapter())


def fetch(url):
    return session.get(url).json()

import requests
from requests.adapters import HTTPAdapter


class Client(requests.Session):
    def __init__(self):
        super().__init__()
        self.headers["Accept"] = "application/json"


class Limited(requests.Session):
    def request(self, method, url, **options):
        return super().request(method, url, timeout=5, **options)


class Retrying(HTTPAdapter):
    pass


def fetch(url):
    client = Client()
    return client.get(url).json()  # expect: GL213


def fetch_again(url):
    retried = requests.Session()
    retried.mount("https://", HTTPAdapter(max_retries=3))
    retried.mount("http://", Retrying())
    return retried.get(url).json()  # expect: GL213


def fetch_in_time(url):
    limited = Limited()
    return limited.get(url).json()  # not: GL213

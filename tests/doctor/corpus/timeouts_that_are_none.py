import redis
import requests

cache = redis.Redis("localhost", socket_timeout=None)  # expect: GL213


def fetch(url):
    return requests.get(url, timeout=None).text  # expect: GL213

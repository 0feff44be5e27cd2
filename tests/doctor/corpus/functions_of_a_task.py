import requests
from celery import shared_task


@shared_task
def order(url):
    _send(url)


@shared_task
def remind(url):
    _ask(url)


def _send(url):
    requests.post(url)  # not: GL213


def _ask(url):
    requests.get(url)  # expect: GL213


def _pass_on(url):
    requests.get(url)  # expect: GL213


def application(environ, start_response):
    _ask("http://localhost")
    list(map(_pass_on, ["http://localhost"]))
    start_response("200 OK", [])
    return [b""]

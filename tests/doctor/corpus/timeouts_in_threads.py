from concurrent.futures import ThreadPoolExecutor
from threading import Thread, Timer

import requests

executor = ThreadPoolExecutor(2)


def notify(url):
    requests.post(url)  # not: GL213


def report(url):
    requests.post(url)  # not: GL213


def remind(url):
    requests.post(url)  # not: GL213


def count(url):
    requests.post(url)  # expect: GL213


class Sender(Thread):
    def run(self):
        requests.post("http://localhost")  # not: GL213


def application(environ, start_response):
    url = "http://localhost"
    executor.submit(notify, url)
    Thread(target=report, args=(url,)).start()
    Timer(5, remind, (url,)).start()
    Timer(5, count, (url,)).start()
    count(url)
    Sender().start()
    start_response("200 OK", [])
    return [b""]

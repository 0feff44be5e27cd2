from concurrent.futures import ThreadPoolExecutor

import requests

executor = ThreadPoolExecutor(2)


def price(url):
    return requests.get(url).text  # expect: GL213


def stock(url):
    return requests.get(url).text  # expect: GL213


def notify(url):
    requests.post(url)  # not: GL213


def application(environ, start_response):
    executor.submit(notify, "http://localhost")
    start_response("200 OK", [])
    return [shown("http://localhost").encode()]


def shown(url):
    parts = [executor.submit(price, url), executor.submit(stock, url)]
    return "".join(each.result() for each in parts)

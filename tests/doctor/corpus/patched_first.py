from gevent import monkey

monkey.patch_all()  # not: GL207

import requests


def application(environ, start_response):
    start_response("200 OK", [])
    return [requests.get("http://localhost", timeout=1).content]

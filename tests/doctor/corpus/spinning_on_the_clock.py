import time


def application(environ, start_response):
    until = time.monotonic() + 0.5
    while time.monotonic() < until:  # expect: GL212
        pass
    start_response("200 OK", [])
    return []

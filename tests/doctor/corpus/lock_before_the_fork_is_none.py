# facts: preload
import threading

lock = threading.Lock()


def application(environ, start_response):
    with lock:
        start_response("200 OK", [])
    return []

import threading
from queue import Queue

jobs, ready = Queue(), threading.Event()


def application(environ, start_response):
    while jobs.empty():  # expect: GL212
        pass
    while not ready.is_set():  # expect: GL212
        pass
    while jobs.empty():
        ready.wait(1)
    while not jobs.empty():
        jobs.get()
    while not environ["job"].done():  # of a service's operation, which asks the service
        pass
    start_response("200 OK", [])
    return []

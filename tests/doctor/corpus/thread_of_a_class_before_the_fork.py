# facts: preload
import threading
from queue import Queue

events = Queue()


class Sender(threading.Thread):
    def run(self):
        while True:
            events.get()


class Server:
    def start(self):
        threading.Thread(target=events.join).start()


def begin():
    threading.Timer(5, events.join).start()  # expect: GL204


def restart():
    threading.Timer(5, events.join).start()


Sender(daemon=True).start()  # expect: GL204
begin()


def application(environ, start_response):
    restart()
    start_response("200 OK", [])
    return []

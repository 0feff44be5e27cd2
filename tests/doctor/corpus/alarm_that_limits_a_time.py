import signal
import threading
from functools import wraps


def limited(seconds):
    def decorate(function):
        def stop(*_):
            raise TimeoutError

        @wraps(function)
        def call(*args):
            before = signal.signal(signal.SIGALRM, stop)  # expect: GL209
            signal.alarm(seconds)
            try:
                return function(*args)
            finally:
                signal.alarm(0)
                signal.signal(signal.SIGALRM, before)

        return call

    return decorate


def in_the_main_thread(seconds, stop):
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, stop)  # not: GL209
        signal.alarm(seconds)

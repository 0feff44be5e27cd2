import signal
import threading


def limited(seconds):
    if threading.current_thread() is threading.main_thread():
        signal.alarm(seconds)  # not: GL208


def handled(seconds, stop):
    try:
        signal.signal(signal.SIGALRM, stop)
    except ValueError:
        return
    signal.alarm(seconds)


def in_a_handler(seconds):
    def again(*_):
        signal.alarm(seconds)

    signal.signal(signal.SIGALRM, again)

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

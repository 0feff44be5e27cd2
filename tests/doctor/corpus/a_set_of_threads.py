import threading
from threading import get_ident

prepared, names = set(), {}


def prepare():
    if get_ident() in prepared:  # expect: GL217
        return
    prepared.add(get_ident())
    names[threading.current_thread()] = "handler"  # expect: GL217

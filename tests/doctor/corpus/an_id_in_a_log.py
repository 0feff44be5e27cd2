import logging
import threading


def note(text):
    logging.info("%s in thread %d", text, threading.get_ident())  # not: GL217

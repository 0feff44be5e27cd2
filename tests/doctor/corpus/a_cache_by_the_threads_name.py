from threading import current_thread

buffers = {}


def buffer():
    return buffers.setdefault(current_thread().name, [])  # expect: GL217

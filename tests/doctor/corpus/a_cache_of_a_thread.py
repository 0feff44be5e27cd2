import threading

local = threading.local()


def session():
    if not hasattr(local, "session"):
        local.session = object()
    return local.session

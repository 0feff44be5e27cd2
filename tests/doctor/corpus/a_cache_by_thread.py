import threading

sessions = {}


def session():
    ident = threading.get_ident()
    if ident not in sessions:  # expect: GL217
        sessions[ident] = object()
    return sessions[ident]

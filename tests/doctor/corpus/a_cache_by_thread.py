import threading

sessions = {}


def session():
    ident = threading.get_ident()
    if ident not in sessions:  # expect: GL217
        sessions[ident] = object()  # expect: GL217
    return sessions[ident]  # expect: GL217

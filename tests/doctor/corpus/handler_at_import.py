import signal

signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # not: GL209


def application(environ, start_response):
    start_response("200 OK", [])
    return []

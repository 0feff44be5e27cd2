import signal

signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def application(environ, start_response):
    start_response("200 OK", [])
    return []

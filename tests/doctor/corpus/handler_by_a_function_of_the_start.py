import signal


def install():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


install()

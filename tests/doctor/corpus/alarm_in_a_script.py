import signal

if __name__ == "__main__":
    signal.alarm(60)

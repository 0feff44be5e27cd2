import signal

from flask import Flask

app = Flask(__name__)


@app.post("/stop")
def stop():
    signal.signal(signal.SIGUSR1, print)  # expect: GL209
    return ""

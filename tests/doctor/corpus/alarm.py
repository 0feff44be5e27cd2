import signal

from flask import Flask

app = Flask(__name__)


@app.get("/")
def index():
    signal.alarm(5)  # expect: GL208
    try:
        return "done"
    finally:
        signal.alarm(0)

from flask import Flask

try:
    import requests
except ImportError:
    requests = None

app = Flask(__name__)
session = None


def client():
    global session
    if session is None:
        session = requests.Session()
    return session


@app.get("/")
def index():
    session = client()
    if requests is not None:
        requests.get("http://inventory/")  # expect: GL213
    return session.get("http://inventory/").text


@app.get("/kept")
def kept():
    client()
    return session.get("http://inventory/").text  # expect: GL213

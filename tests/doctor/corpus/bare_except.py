import requests
from flask import Flask

app = Flask(__name__)


@app.get("/")
def index():
    try:
        return requests.get("http://localhost", timeout=1).text
    except:  # expect: GL211
        return "nothing"


@app.get("/made")
def made():
    try:
        return make_request()
    except:  # expect: GL211
        return "nothing"

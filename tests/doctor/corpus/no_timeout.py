import requests
from flask import Flask

app = Flask(__name__)


@app.get("/")
def index():
    return requests.get("http://localhost").text  # expect: GL213

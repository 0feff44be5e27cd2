import requests
from flask import Flask, jsonify

app = Flask(__name__)


@app.get("/text")
def text():
    try:
        return requests.get("http://localhost", timeout=1).text
    except BaseException as error:  # expect: GL211
        return jsonify(error=str(error))


@app.get("/kind")
def kind():
    try:
        return requests.get("http://localhost", timeout=1).text
    except BaseException as error:  # expect: GL211
        if isinstance(error, TimeoutError):
            return {"error": "late: {}".format(error)}
        return {"error": f"failed: {error!r}", "kind": type(error).__name__, "of": error.args}


@app.get("/group")
def group():
    answer = ""
    try:
        answer = requests.get("http://localhost", timeout=1).text
    except* BaseException as errors:  # expect: GL211
        answer = "failed: %s" % errors
    return answer


@app.get("/finally")
def at_the_end():
    try:
        answer = requests.get("http://localhost", timeout=1).text
    finally:
        return "nothing"  # expect: GL211


@app.get("/closed")
def closed():
    session = requests.Session()
    try:
        return session.get("http://localhost", timeout=1).text
    finally:

        def closed():
            return session.close()

        closed()

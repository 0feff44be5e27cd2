from flask import Flask

app = Flask(__name__)
state = {"is_ready": False}


@app.get("/")
def index():
    while not state["is_ready"]:  # expect: GL212
        pass
    return "ready"

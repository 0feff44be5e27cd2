"""The same as ``json_flask``, with our Flask in place of Flask's."""

from greenline.flask import Flask

app = Flask(__name__)


@app.get("/")
def answer() -> dict[str, str]:
    """Answer."""
    return {"status": "ok"}

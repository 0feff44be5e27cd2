"""A small JSON object from Flask as it is."""

from flask import Flask

app = Flask(__name__)


@app.get("/")
def answer() -> dict[str, str]:
    """Answer."""
    return {"status": "ok"}

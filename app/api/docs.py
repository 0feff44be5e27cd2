"""
``/docs``: Swagger UI over ``/openapi.json``, all of it served from here.

1. There are the files of a table and no others: no path that comes in is looked up on the disk.
2. No script or style stands in the page, so that the browser can be told to run none that does.
"""

from importlib.resources import files
from pathlib import Path

from flask import Flask, Response, send_file

from app.errors import NotFound

A_DAY_S = 86_400
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Ours are asked for each time, as they change when we do.
OURS = {"docs.html", "docs.js"}
PACKAGED = {"favicon-32x32.png", "swagger-ui-bundle.js", "swagger-ui.css"}


def add(app: Flask) -> None:
    """Serve the page and what it loads."""
    here, packaged = Path(__file__).parent, Path(str(files("flask_swagger_ui"))) / "dist"
    paths = {name: here / name for name in OURS} | {name: packaged / name for name in PACKAGED}

    def page() -> Response:
        response = file("docs.html")
        response.headers["Content-Security-Policy"] = POLICY
        return response

    def file(name: str) -> Response:
        if name not in paths:
            raise NotFound
        return send_file(paths[name], max_age=A_DAY_S if name in PACKAGED else 0)

    app.add_url_rule("/docs", "docs.page", page)
    app.add_url_rule("/docs/<name>", "docs.file", file)

"""``/``, which leads to ``/docs``: Swagger UI for ``/openapi.json``, without any other host."""

from functools import partial
from importlib.resources import files
from pathlib import Path

from flask import Flask, Response, send_file

from app.errors import NotFound

A_DAY_S = 86_400
# No inline script or style is allowed, so the page has none.
DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# These change with each release, so browsers ask for them each time.
OURS = {"docs.html", "docs.js", "index.html"}
PACKAGED = {"favicon-32x32.png", "swagger-ui-bundle.js", "swagger-ui.css"}


def add(app: Flask) -> None:
    """Add the two pages and the files that they load."""
    here, packaged = Path(__file__).parent, Path(str(files("flask_swagger_ui"))) / "dist"
    paths = {name: here / name for name in OURS} | {name: packaged / name for name in PACKAGED}

    def page(name: str) -> Response:
        response = file(name)
        response.headers["Content-Security-Policy"] = DOCS_POLICY
        return response

    def file(name: str) -> Response:
        # A path of the request never reaches the disk: only the files of the table exist.
        if name not in paths:
            raise NotFound
        return send_file(paths[name], max_age=A_DAY_S if name in PACKAGED else 0)

    app.add_url_rule("/", "docs.index", partial(page, "index.html"))
    app.add_url_rule("/docs", "docs.page", partial(page, "docs.html"))
    app.add_url_rule("/docs/<name>", "docs.file", file)

"""``/openapi.json`` is built while the worker loads the application."""

import pytest

from app.api import openapi
from app.factory import create_app
from config import load


def test_the_first_request_does_not_build_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes up to half a second, in which no other request would be served."""
    environ = {"DATABASE_URL": "postgresql://127.0.0.1:1/none", "MONGODB_URI": "mongodb://h"}
    app = create_app(load(environ))
    app.extensions["greenline"].close()
    with monkeypatch.context() as patched:
        patched.delattr(openapi, "document")
        answer = app.test_client().get("/openapi.json")
    assert answer.status_code == 200
    assert "/openapi.json" in answer.get_json()["paths"]

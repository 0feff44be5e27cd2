"""Take the client's address from the proxy, where the worker trusts who connected."""

from collections.abc import Iterable
from typing import Any

from flask import Flask
from werkzeug.middleware.proxy_fix import ProxyFix

from greenline.http import proxy_headers


def register(app: Flask) -> None:
    """Let a trusted ``X-Forwarded-For`` name the client; the scheme is gunicorn's to take over."""
    app.wsgi_app = _Forwarded(app.wsgi_app)  # type: ignore[method-assign]


class _Forwarded:
    """A WSGI application around *application*."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._behind_proxy = ProxyFix(application, x_for=1, x_proto=0, x_host=0)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        is_trusted = environ.get(proxy_headers.IS_TRUSTED) and "HTTP_X_FORWARDED_FOR" in environ
        application = self._behind_proxy if is_trusted else self._application
        answer: Iterable[bytes] = application(environ, start_response)
        return answer

"""Take the client's address from ``X-Forwarded-For`` of a trusted proxy."""

from collections.abc import Iterable
from typing import Any

from flask import Flask
from werkzeug.middleware.proxy_fix import ProxyFix

from greenline.http import proxy_headers


def register(app: Flask) -> None:
    """Set REMOTE_ADDR from a trusted ``X-Forwarded-For``. gunicorn itself sets the scheme."""
    app.wsgi_app = _Forwarded(app.wsgi_app)  # type: ignore[method-assign]


class _Forwarded:
    """A WSGI application around *application*: Flask's hooks would cost a request object."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._behind_proxy = ProxyFix(application, x_for=1, x_proto=0, x_host=0)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # The worker sets this flag after it compared the peer with forwarded_allow_ips. Any other
        # client could write an address of its choice into the header.
        is_trusted = environ.get(proxy_headers.IS_TRUSTED) and "HTTP_X_FORWARDED_FOR" in environ
        application = self._behind_proxy if is_trusted else self._application
        answer: Iterable[bytes] = application(environ, start_response)
        return answer

"""
The undocumented names of gunicorn that the runtime uses, checked once, at import.

A version of gunicorn without one of them, or with another signature, ends the process with one line
that says which version it is and which ones are supported.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import gunicorn

SUPPORTED = ">=27,<28"


def _refuse(reason: str) -> None:
    sys.exit(
        f"greenline: gunicorn {gunicorn.__version__} is not supported ({reason}): "
        f"install gunicorn{SUPPORTED}"
    )


try:
    from gunicorn.arbiter import Arbiter
    from gunicorn.http import wsgi
    from gunicorn.http.body import Body, ChunkedReader, LengthReader
    from gunicorn.http.errors import InvalidHeader, NoMoreData
    from gunicorn.http.message import (
        DEFAULT_MAX_HEADERFIELD_SIZE,
        MAX_HEADERS,
        MAX_REQUEST_LINE,
        HeaderPolicy,
        Request,
    )
    from gunicorn.http.message import _check_fast_parser as may_use_fast_parser
    from gunicorn.http.parser import RequestParser
    from gunicorn.http.wsgi import (
        HEADER_VALUE_RE,
        STATUS_RE,
        TOKEN_RE,
        WSGIErrorsWrapper,
        base_environ,
    )
    from gunicorn.http.wsgi import _make_early_hints_callback as early_hints_callback
    from gunicorn.http2 import negotiation
    from gunicorn.http2.errors import HTTP2ConnectionError, HTTP2Error
    from gunicorn.http2.response import HTTP2Response
    from gunicorn.sock import is_http2_negotiated, ssl_context
    from gunicorn.util import hop_headers, http_date, is_ipv6, unquote_to_wsgi_str
    from gunicorn.uwsgi.parser import UWSGIParser
    from gunicorn.workers.base_async import ALREADY_HANDLED
    from gunicorn.workers.ggevent import GeventWorker
except ImportError as error:
    _refuse(str(error))

# What is called or overridden, with the parameters that it has in the supported versions.
SIGNATURES: tuple[tuple[Callable[..., Any], str], ...] = (
    (wsgi.create, "req sock client server cfg response_class response_args"),
    (wsgi.default_environ, "req sock cfg"),
    (base_environ, "cfg"),
    (early_hints_callback, "req sock resp"),
    (Request.__init__, "self cfg unreader peer_addr req_number"),
    (Request._parse_python, "self unreader buf"),
    (HeaderPolicy._peer_is_trusted_proxy, "self"),
    (GeventWorker.handle, "self listener client addr"),
    (GeventWorker.handle_http2_request, "self listener_name req sock addr h2_conn"),
    (Arbiter.handle_hup, "self"),
    (Arbiter.manage_workers, "self"),
    (Arbiter.reap_workers, "self"),
    (Arbiter.stop, "self graceful"),
    (negotiation.upgrade_allowed, "cfg peer_addr"),
    (negotiation.prior_knowledge_allowed, "cfg peer_addr"),
)


def check(signatures: tuple[tuple[Callable[..., Any], str], ...] = SIGNATURES) -> None:
    """
    Prove that gunicorn's functions have the parameters that the runtime knows.

    :param signatures: the functions, each with the names of its parameters.
    :raises SystemExit: one has others; the one line says which function and which versions are
        supported.
    """
    for function, expected in signatures:
        parameters = inspect.signature(function).parameters
        # A monitoring agent may have wrapped it in a function of any arguments.
        is_wrapped = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
        if (found := " ".join(parameters)) != expected and not is_wrapped:
            _refuse(f"{function.__qualname__}({found.replace(' ', ', ')})")


check()

"""
Make the request object, and read usual requests, in fewer steps than Werkzeug's general code.

All attributes have Flask's values. What is not usual, such as a query string with escapes or
another storage class, is left to Werkzeug.
"""

from functools import lru_cache
from typing import IO, Any

import flask
from werkzeug.datastructures import EnvironHeaders, ImmutableMultiDict, MultiDict
from werkzeug.http import parse_options_header
from werkzeug.sansio.http import parse_cookie
from werkzeug.utils import cached_property

from greenline.flask.compat import _cv_app
from greenline.flask.routing import decoded

# Clients choose the Content-Type: this many are remembered, if they are short.
MAX_TYPES, MAX_LENGTH = 256, 100


def limit(name: str, own: str) -> Any:
    """
    Return a property of Flask's that reads the application's configuration.

    :param name: of the property, str; in capitals it is the variable's.
    :param own: the attribute that has the request's own value, str.
    """
    flasks: Any = getattr(flask.Request, name)
    variable = name.upper()

    def get(self: Any) -> int | None:
        ctx = _cv_app.get(None)
        # Without the proxy of the current application, which takes longer than all else.
        if ctx is None or getattr(self, own) is not None:
            return flasks.fget(self)  # type: ignore[no-any-return]
        return ctx.app.config[variable]  # type: ignore[no-any-return]

    return property(get, flasks.fset)


class Request(flask.Request):
    """
    Do what ``flask.Request`` does.

    :param environ: the WSGI environ.
    :param populate_request: whether the environ gets the object, bool. Default True.
    :param shallow: whether the body cannot be read, bool. Default False.
    """

    def __init__(
        self, environ: dict[str, Any], populate_request: bool = True, shallow: bool = False
    ) -> None:
        get = environ.get
        self.method = get("REQUEST_METHOD", "GET").upper()
        self.scheme = get("wsgi.url_scheme", "http")
        self.server = _server(get("SERVER_NAME"), get("SERVER_PORT"))
        self.root_path = decoded(get("SCRIPT_NAME") or "").rstrip("/")
        self.path = "/" + decoded(get("PATH_INFO") or "").lstrip("/")
        self.query_string = get("QUERY_STRING", "").encode("latin1")
        self.headers = EnvironHeaders(environ)
        self.remote_addr = get("REMOTE_ADDR")
        self.environ = environ
        self.shallow = shallow
        if populate_request and not shallow:
            environ["werkzeug.request"] = self

    max_content_length = limit("max_content_length", "_max_content_length")
    max_form_memory_size = limit("max_form_memory_size", "_max_form_memory_size")
    max_form_parts = limit("max_form_parts", "_max_form_parts")

    @cached_property
    def args(self) -> MultiDict[str, str]:
        text = self.query_string.decode()
        if "%" in text or "+" in text or self.parameter_storage_class is not ImmutableMultiDict:
            return super().args
        return _fields(text)

    @cached_property
    def cookies(self) -> ImmutableMultiDict[str, str]:
        headers = self.headers
        if type(headers) is not EnvironHeaders:
            return super().cookies
        # Werkzeug looks at all headers for it.
        cookie = headers.environ.get("HTTP_COOKIE", "")
        return parse_cookie(cookie, self.dict_storage_class)  # type: ignore[return-value]

    @cached_property
    def stream(self) -> IO[bytes]:
        environ = self.environ
        # Such as our worker's, which ends with the body.
        if (
            self.shallow
            or "wsgi.input_terminated" not in environ
            or self.max_content_length is not None
        ):
            return super().stream
        return environ["wsgi.input"]  # type: ignore[no-any-return]

    def _parse_content_type(self) -> None:
        if not hasattr(self, "_parsed_content_type"):
            text = self.headers.get("Content-Type", "")
            if len(text) > MAX_LENGTH:
                self._parsed_content_type = parse_options_header(text)
            else:
                mimetype, parameters = _parsed(text)
                self._parsed_content_type = mimetype, parameters.copy()


@lru_cache(MAX_TYPES)
def _parsed(content_type: str) -> tuple[str, dict[str, str]]:
    return parse_options_header(content_type)


@lru_cache
def _server(name: str | None, port: str | None) -> tuple[str, int | None] | None:
    """Return what Werkzeug makes of SERVER_NAME and SERVER_PORT, which has none for a socket."""
    if name is None:
        return None
    try:
        return name, int(port)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return name, None


def _fields(text: str) -> ImmutableMultiDict[str, str]:
    """Return the fields of a query string without escapes."""
    values: dict[str, list[str]] = {}
    for field in text.split("&"):
        if field:
            name, _, value = field.partition("=")
            values.setdefault(name, []).append(value)
    # As its constructor does, which takes pairs.
    fields: ImmutableMultiDict[str, str] = dict.__new__(ImmutableMultiDict)
    dict.update(fields, values)
    return fields

"""
Flask's default JSON provider, by msgspec where the result is the same.

Settings (``default``, ``ensure_ascii``, ``sort_keys``, ``compact``, ``mimetype``) keep their
meaning. There are two differences from Flask: a float with an exponent has another spelling (1e16
for 1e+16), and bytes and sets, which Flask refuses with a TypeError, are written as base64 and as
an array.
"""

import marshal
from typing import Any

import msgspec
from flask.json.provider import DefaultJSONProvider
from werkzeug.sansio.response import Response

from greenline.flask.response import ResponseFactory

# The last format without references to earlier objects, whose bookkeeping takes time.
MARSHAL_VERSION = 2

_sorted = msgspec.json.Encoder(order="sorted")
_unsorted = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class JSONProvider(DefaultJSONProvider):
    """
    Flask's default provider, faster.

    Without an ``__init__``, so that a provider which Flask has made may become one.
    """

    _factory: ResponseFactory | None = None

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        if not kwargs:
            try:
                return _decoder.decode(s)
            except (ValueError, TypeError, RecursionError):
                pass  # json accepts more (NaN, UTF-16), and its error texts are Flask's
        return super().loads(s, **kwargs)

    def response(self, *args: Any, **kwargs: Any) -> Response:
        app = self._app
        # Flask indents JSON in debug mode, unless `compact` is set.
        if self.compact or (self.compact is None and not app.config["DEBUG"]):
            factory = self._factory
            # Both attributes may be set at any time.
            if (
                factory is None
                or factory.response_class is not app.response_class
                or factory.mimetype != self.mimetype
            ):
                factory = self._factory = ResponseFactory(app.response_class, self.mimetype)
            if factory.works:
                body = self._compact(self._prepare_response_obj(args, kwargs))
                if body is not None:
                    return factory(body)  # type: ignore[no-any-return]
        return super().response(*args, **kwargs)

    def _compact(self, value: Any) -> bytes | None:
        """Return *value* and a newline as Flask writes them; None if Flask itself has to."""
        # An overridden dumps() is called, or one that was set on the provider.
        if type(self).dumps is not DefaultJSONProvider.dumps or "dumps" in self.__dict__:
            return None
        try:
            # Fails, at the speed of C, unless all types are exact builtins. Flask writes dates,
            # UUIDs, dataclasses and subclasses such as request.args, partly through `default`.
            marshal.dumps(value, MARSHAL_VERSION)
            body = (_sorted if self.sort_keys else _unsorted).encode(value)
            # json escapes these characters, msgspec does not.
            if self.ensure_ascii and (not body.isascii() or b"\x7f" in body):
                return None
            # msgspec writes NaN and infinity as null, json by their names.
            if b"null" in body and _decoder.decode(body) != value:
                return None
        except (ValueError, TypeError, RecursionError):
            return None
        return body + b"\n"

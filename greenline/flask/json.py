"""
Flask's default JSON provider, with msgspec where its answer is the same.

1. ``response()`` in its compact form is written by msgspec when the value is made of exact builtin
   types, which ``marshal`` proves at the speed of C: dates, UUIDs, dataclasses, subclasses such as
   ``request.args`` and whatever ``default`` is for go to Flask's own writer. So does what holds a
   character to be escaped, or a ``null`` that may have been a NaN.
2. ``loads()`` reads with msgspec, and reads again with ``json`` what msgspec refuses.
3. Settings (``default``, ``ensure_ascii``, ``sort_keys``, ``compact``, ``mimetype``) keep their
   meaning, also when they change; a subclass that overrides ``dumps`` or ``loads`` is asked.
4. Two differences from Flask: a float with an exponent is the same number in other digits (1e16
   for 1e+16), and bytes and sets, which Flask refuses with a TypeError, are written (as base64 and
   as an array).
"""

import marshal
import weakref
from typing import Any

import msgspec
from flask import Flask
from flask.json.provider import DefaultJSONProvider
from werkzeug.sansio.response import Response

from greenline.flask.response import ResponseFactory

# marshal's last format without references: it only has to look at each object once.
MARSHAL_VERSION = 2

_sorted = msgspec.json.Encoder(order="sorted")
_unsorted = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class JSONProvider(DefaultJSONProvider):
    """``app.json``: the default provider, faster."""

    def __init__(self, app: Flask) -> None:
        super().__init__(app)
        self._ref = weakref.ref(app)
        self._factory: ResponseFactory | None = None

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        if not kwargs:
            try:
                return _decoder.decode(s)
            except (ValueError, TypeError, RecursionError):
                pass  # json takes more (NaN, UTF-16), and words its errors its own way
        return super().loads(s, **kwargs)

    def response(self, *args: Any, **kwargs: Any) -> Response:
        app = self._ref()
        if app is not None and (self.compact or (self.compact is None and not app.config["DEBUG"])):
            factory = self._factory
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
        """Return *value* and a newline as Flask writes them; None when only Flask can tell."""
        if type(self).dumps is not DefaultJSONProvider.dumps:
            return None
        try:
            marshal.dumps(value, MARSHAL_VERSION)
            body = (_sorted if self.sort_keys else _unsorted).encode(value)
            if self.ensure_ascii and (not body.isascii() or b"\x7f" in body):
                return None
            if b"null" in body and _decoder.decode(body) != value:
                return None
        except (ValueError, TypeError, RecursionError):
            return None
        return body + b"\n"

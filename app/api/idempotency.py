"""``Idempotency-Key``: a repeated POST has the answer of the first one."""

import re
from hashlib import sha256
from typing import Any

import msgspec

from app.api import http
from app.errors import InvalidRequest
from app.store.ports import Idempotency

KEY = re.compile(r"[\x21-\x7e]{1,255}")
OWNER = "greenline.api_key"  # in environ: the id of the request's API key, set by the guard


def asked(what: str, sent: Any) -> Idempotency | None:
    """
    Return the idempotency key of the request, None without one.

    :param what: the resource and the kind of operation, as in "books one".
    :param sent: the parsed body.
    :raises InvalidRequest: the key is empty, too long, or contains blanks.
    """
    environ = http.environ()
    key = environ.get("HTTP_IDEMPOTENCY_KEY")
    if key is None:
        return None
    if not KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key has 1 to 255 visible ASCII characters")
    # Of the parsed body: white space and the order of fields do not matter in a repeated request.
    request = sha256(what.encode() + b"\0" + msgspec.json.encode(sent)).digest()
    # Two API keys may choose the same idempotency key, and one may use it for each resource.
    return Idempotency(f"{environ.get(OWNER, '')} {what.split()[0]} {key}", request)

"""``Idempotency-Key``: the same POST again gives the first answer again."""

import re
from hashlib import sha256
from typing import Any

import msgspec

from app.api import http
from app.errors import InvalidRequest
from app.store.ports import Once

KEY = re.compile(r"[\x21-\x7e]{1,255}")
OWNER = "greenline.api_key"  # where the guard leaves the id of the key that asks


def asked(what: str, sent: Any) -> Once | None:
    """
    Return whose key came with the request to do *what* with what was *sent*; None without one.

    Raises:
        InvalidRequest: the key is empty, too long, or has blanks in it.
    """
    environ = http.environ()
    key = environ.get("HTTP_IDEMPOTENCY_KEY")
    if key is None:
        return None
    if not KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key has 1 to 255 visible ASCII characters")
    request = sha256(what.encode() + b"\0" + msgspec.json.encode(sent)).digest()
    return Once(f"{environ.get(OWNER, '')} {what.split()[0]} {key}", request)

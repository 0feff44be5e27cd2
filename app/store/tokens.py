"""
What proves an API key: ``gl_``, a prefix that finds it, and a secret that nobody else can guess.

Only the hash of a token is kept. A fast one will do: the secret is 256 random bits and no word.
"""

import re
import secrets
import string
from hashlib import sha256
from typing import NamedTuple

ALPHABET = string.ascii_letters + string.digits
PREFIX_LENGTH = 12
SECRET_BYTES = 32
FORM = re.compile(r"gl_([0-9A-Za-z]{12})_[0-9A-Za-z_-]{43}")


class Token(NamedTuple):
    """A token, and what is kept of it."""

    text: str
    prefix: str
    digest: bytes


def make() -> Token:
    """Return a new token."""
    prefix = "".join(secrets.choice(ALPHABET) for _ in range(PREFIX_LENGTH))
    text = f"gl_{prefix}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return Token(text, prefix, digest(text))


def digest(text: str) -> bytes:
    """Return the hash of what was sent for a token, in whatever characters a header has."""
    return sha256(text.encode("latin-1", "replace")).digest()


def prefix_of(text: str) -> str | None:
    """Return the prefix of *text*; None when it has not the form of a token."""
    found = FORM.fullmatch(text)
    return found and found[1]

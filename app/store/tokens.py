"""The tokens of API keys: ``gl_``, a prefix by which the key is found, and a secret."""

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
    """
    A token, and the parts of it that are stored.

    :param text: the whole token, which only its owner has, str.
    :param prefix: the part that identifies the key, str.
    :param digest: the SHA-256 of the token, bytes.
    """

    text: str
    prefix: str
    digest: bytes


def make() -> Token:
    """Return a new token."""
    prefix = "".join(secrets.choice(ALPHABET) for _ in range(PREFIX_LENGTH))
    text = f"gl_{prefix}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return Token(text, prefix, digest(text))


def digest(text: str) -> bytes:
    """Return the hash of *text*, which may have any characters that a header can contain."""
    # A fast hash is enough: the secret is 256 random bits, not a password that could be guessed.
    return sha256(text.encode("latin-1", "replace")).digest()


def prefix_of(text: str) -> str | None:
    """Return the prefix of *text*; None if it has not the form of a token."""
    found = FORM.fullmatch(text)
    return found and found[1]

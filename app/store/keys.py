"""
API keys in Postgres. A key's token is shown once; only its hash is stored.

After a rotation a key has two tokens until the overlap ends; a second rotation ends the first
overlap. Answers are not cached here: :mod:`app.api.access` does that, for a limited time.
"""

from collections.abc import Sequence
from hmac import compare_digest
from typing import Any, ClassVar

import msgspec
from msgspec import Struct
from psycopg2.extensions import connection as Connection

from app.errors import InvalidRequest
from app.records import KeyInput
from app.store import tokens
from app.store.named import NamedTable
from app.store.ports import Idempotency, Stored, Transaction
from app.store.queries import read
from app.store.tables import Order
from greenline.errors import ConfigError

_FIND_BY_PREFIX = read("api_keys/find")
_EXISTS = read("api_keys/exists")


class Grant(Struct, frozen=True):
    """
    A valid key.

    :param key_id: the key's id, int.
    :param scopes: the rights of the key, str each.
    """

    key_id: int
    scopes: frozenset[str]


class Keys(NamedTable[KeyInput]):
    """The keys' repository."""

    name = "api_keys"
    noun = "key"
    filters: ClassVar = {"name": "name = %(name)s"}
    orders: ClassVar = {
        "id": Order("id", "%(value)s::bigint"),
        "name": Order("name", "%(value)s::text"),
        "created_at": Order("created_at", "%(value)s::timestamptz"),
        "updated_at": Order("updated_at", "%(value)s::timestamptz"),
    }

    def find(self, token: str) -> Grant | None:
        """Return the grant of *token*; None if it is unknown or expired."""
        prefix = tokens.prefix_of(token)
        if prefix is None:
            return None
        rows = self._pool.fetch("api_key_by_prefix", _FIND_BY_PREFIX, {"prefix": prefix})
        if not rows:
            return None
        key_id, scopes, kept = rows[0]
        # In constant time: the duration must not show how much of a guess is right.
        if not compare_digest(bytes(kept), tokens.digest(token)):
            return None
        return Grant(key_id, frozenset(scopes))

    def create(
        self, items: Sequence[KeyInput], idempotency: Idempotency | None = None
    ) -> list[Stored]:
        # A repeated request would need the token, of which only the hash is stored.
        if idempotency is not None:
            raise InvalidRequest("a key is shown once: it cannot be made with an Idempotency-Key")
        return super().create(items)

    def rotate(self, key_id: int, overlap_s: int) -> Stored:
        """
        Give a key a new token.

        :param key_id: the key's id, int.
        :param overlap_s: seconds that the old token stays valid, int.
        :returns: the key as stored, with its new token.
        :raises NotFound: there is no such key.
        """
        made = tokens.make()
        values = {
            "id": key_id, "overlap_s": overlap_s, "prefix": made.prefix, "hash": made.digest
        }  # fmt: skip
        text = f"{read('api_keys/rotate')} {self._document}"
        with self._pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
            cursor.execute(text, values)
            row = cursor.fetchone()
        if row is None:
            raise self._missing([key_id])
        return _shown(row, made)

    def _insert(self, transaction: Transaction, items: Sequence[KeyInput]) -> list[Stored]:
        made = [tokens.make() for _ in items]
        given = [
            {**msgspec.to_builtins(item), "prefix": token.prefix, "hash": token.digest.hex()}
            for item, token in zip(items, made, strict=True)
        ]
        sent = {"items": msgspec.json.encode(given).decode()}
        # By id, which is the order of the items: each row gets its own token.
        rows = sorted(transaction.run([self._inserting], sent))
        return [_shown(row, token) for row, token in zip(rows, made, strict=True)]


def require_one(conn: Connection) -> None:
    """
    Refuse a database without a valid API key.

    :raises ConfigError: there is none; the message says how to create one.
    """
    with conn.cursor() as cursor:
        cursor.execute(_EXISTS)
        if cursor.fetchone() != (True,):
            raise ConfigError(
                "AUTH: there is no API key; type flask keys create --name first "
                "--scopes read,write,admin, or set AUTH=off to let everybody in"
            )


def _shown(row: Sequence[Any], token: tokens.Token) -> Stored:
    """Return a stored key with its token, for the one answer that shows it."""
    # Inserted after the opening brace: cheaper than decoding the document.
    document = row[2].encode()
    return Stored(row[0], row[1], b'{"key":"%b",%b' % (token.text.encode(), document[1:]))

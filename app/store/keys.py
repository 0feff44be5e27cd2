"""
API keys, in Postgres: who may do what, proved by a token that is shown once.

1. A token is kept as its hash, found by its prefix and compared in constant time.
2. A rotated key has two tokens until the overlap ends; a second rotation ends the first's.
3. What is deleted, over or narrowed is so for whoever asks next: who remembers an answer bounds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any, ClassVar

import msgspec
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from app.errors import InvalidRequest
from app.records import KeyInput
from app.store import tokens
from app.store.named import NamedTable
from app.store.ports import Once, Stored
from app.store.queries import read
from app.store.tables import Order
from greenline.errors import ConfigError

_FIND = read("api_keys/find")
_EXISTS = read("api_keys/exists")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a key allows."""

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
        """Return what *token* allows now; None when it is nobody's, or over."""
        prefix = tokens.prefix_of(token)
        if prefix is None:
            return None
        rows = self._pool.fetch("api_key_by_prefix", _FIND, {"prefix": prefix})
        if not rows:
            return None
        key_id, scopes, kept = rows[0]
        if not compare_digest(bytes(kept), tokens.digest(token)):
            return None
        return Grant(key_id, frozenset(scopes))

    def create(self, items: Sequence[KeyInput], once: Once | None = None) -> list[Stored]:
        if once is not None:
            raise InvalidRequest("a key is shown once: it cannot be made with an Idempotency-Key")
        return super().create(items)

    def rotate(self, key_id: int, overlap_s: int) -> Stored:
        """
        Give a key another token; the one that it had works for *overlap_s* seconds more.

        Raises:
            NotFound: there is no such key.
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

    def _insert(self, cursor: Cursor, items: Sequence[KeyInput]) -> list[Stored]:
        made = [tokens.make() for _ in items]
        given = [
            {**msgspec.to_builtins(item), "prefix": token.prefix, "hash": token.digest.hex()}
            for item, token in zip(items, made, strict=True)
        ]
        sent = {"items": msgspec.json.encode(given).decode()}
        cursor.execute(f"{self._inserting} {self._document}", sent)
        rows = sorted(cursor.fetchall())
        return [_shown(row, token) for row, token in zip(rows, made, strict=True)]


def require_one(conn: Connection) -> None:
    """
    Refuse a database in which there is no key that anybody could use.

    Raises:
        ConfigError: says how to make one.
    """
    with conn.cursor() as cursor:
        cursor.execute(_EXISTS)
        if cursor.fetchone() != (True,):
            raise ConfigError(
                "AUTH: there is no API key; type flask keys create --name first "
                "--scopes read,write,admin, or set AUTH=off to let everybody in"
            )


def _shown(row: Sequence[Any], token: tokens.Token) -> Stored:
    """Return a stored key with its token, which nothing but this document has."""
    document = row[2].encode()
    return Stored(row[0], row[1], b'{"key":"%b",%b' % (token.text.encode(), document[1:]))

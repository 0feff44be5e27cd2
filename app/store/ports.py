"""What the repositories are handed: something that lends a connection or a database."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from psycopg2.extensions import connection as Connection
from pymongo.database import Database

Document = dict[str, Any]


class Pool(Protocol):
    """Lends Postgres connections; errors come out as those of :mod:`greenline.errors`."""

    def connection(self, *, autocommit: bool = False) -> AbstractContextManager[Connection]:
        """One transaction for the length of the block; with *autocommit* each statement is one."""
        ...


class Mongo(Protocol):
    """Lends the MongoDB database; errors come out as those of :mod:`greenline.errors`."""

    def database(self) -> "AbstractContextManager[Database[Document]]":
        """Lent for the length of the block."""
        ...

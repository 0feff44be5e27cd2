"""Connections for commands, and the translation of errors into messages."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import psycopg2
from psycopg2.extensions import connection as Connection
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from app.store.ports import Document
from config import Settings
from greenline.errors import ConfigError, GreenlineError, StoreDown
from greenline.mongo.client import make_client
from greenline.mongo.errors import first_sentence
from greenline.mongo.options import DOCUMENTDB, split
from greenline.postgres.connect import check_url
from greenline.postgres.errors import first_line, translated
from greenline.postgres.limits import APPLICATION
from greenline.postgres.transaction import Transaction
from greenline.settings import DATABASE_URL, MONGODB_URI

REACH_TIMEOUT_S = 5

T = TypeVar("T")


def postgres(settings: Settings) -> Connection:
    """
    Return a connection to Postgres.

    :raises ConfigError: ``DATABASE_URL`` is wrong.
    :raises psycopg2.Error: the server cannot be reached.
    """
    with DATABASE_URL.named():
        url = check_url(settings.database_url)
    return psycopg2.connect(
        url, connect_timeout=REACH_TIMEOUT_S, fallback_application_name=APPLICATION
    )


class OneConnection:
    """
    A pool of one connection, for the repositories that a command uses.

    :param conn: the connection.
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    @contextmanager
    def connection(self, *, autocommit: bool = False, reset: bool = True) -> Iterator[Connection]:
        """
        Lend the connection for one transaction.

        :param autocommit: ignored, as the block is one transaction anyway.
        :param reset: ignored: no other user follows.
        """
        with translated(), self._conn:
            yield self._conn

    def fetch(self, name: str, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """
        Run one statement that only reads.

        :param name: ignored: a command runs it too rarely to prepare it.
        :param text: the statement.
        :param values: its parameters.
        :returns: the rows.
        """
        with self.connection() as conn, conn.cursor() as cursor:
            cursor.execute(text, values)
            return cursor.fetchall()

    def transact(self, work: Callable[[Transaction], T], *, reset: bool = True) -> T:
        """
        Return the result of *work*, run in one transaction.

        :param work: called once.
        :param reset: ignored.
        """
        # Not repeated: a person can run the command again.
        with self.connection() as conn, conn.cursor() as cursor:
            return work(Transaction(cursor, prepare=False))


def mongo(settings: Settings) -> "MongoClient[Document]":
    """
    Return a client of MongoDB.

    :raises ConfigError: the service has no MongoDB, or the URI is wrong.
    """
    uri = settings.mongodb_uri
    if uri is None:
        raise ConfigError("MONGODB_URI: the service has no MongoDB")
    engine = DOCUMENTDB if settings.mongodb_documentdb else {}
    # Options of the URI win over these.
    ours, _ = split(uri, {"serverSelectionTimeoutMS": REACH_TIMEOUT_S * 1000, **engine})
    with MONGODB_URI.named():
        return make_client(uri, ours)


@contextmanager
def plain_errors() -> Iterator[None]:
    """
    Turn errors of a ``with`` block into one line that names the setting.

    :raises ClickException: the block raised an error of a driver or of Greenline.
    """
    try:
        yield
    except psycopg2.Error as error:
        raise click.ClickException(f"DATABASE_URL: {first_line(error)}") from error
    except PyMongoError as error:
        raise click.ClickException(f"MONGODB_URI: {first_sentence(error)}") from error
    except StoreDown as error:
        # The same error for both databases: its cause shows which one it was.
        is_mongo = isinstance(error.__cause__, PyMongoError)
        name = "MONGODB_URI" if is_mongo else "DATABASE_URL"
        raise click.ClickException(f"{name}: {error}") from error
    except GreenlineError as error:
        raise click.ClickException(str(error)) from error

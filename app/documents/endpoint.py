"""
One side of a copy: a collection on a server, in the notation of the commands.

``mongodb://host/database.collection?options`` names a collection on any server;
``database.collection`` and ``collection`` are on the service's own server.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urlsplit

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection
from pymongo.errors import ConnectionFailure, PyMongoError
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from app.documents.files import MAX_DOCUMENT_BYTES
from app.documents.ids import RAW
from greenline.errors import ConfigError, GreenlineError, StoreDown, StoreError
from greenline.mongo.client import database_of, make_client, server_of
from greenline.mongo.errors import first_sentence
from greenline.mongo.options import Options, split

SELECTION_MS, SOCKET_MS = 5_000, 60_000
INTERNAL_ERROR = 1  # MongoDB's code
# Besides the batches: the cursor, the checkpoint, the change stream.
OTHER_CONNECTIONS = 4


@dataclass(frozen=True)
class CollectionAddress:
    """
    The address of a collection.

    :param uri: of the server, str; it may contain a password, so it is never printed.
    :param database: its name, str.
    :param collection: its name, str.
    :param options: pymongo's options, which the URI may replace. Default none.
    """

    uri: str = field(repr=False)
    database: str
    collection: str
    options: Options = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{server_of(self.uri)}/{self.database}.{self.collection}"


@dataclass(frozen=True)
class CollectionEndpoint:
    """
    A connected collection whose documents are read and written as raw BSON.

    :param name: its name in errors, str.
    :param collection: pymongo's.
    :param max_document_bytes: the server's limit, int.
    :param is_view: bool. Default False.
    """

    name: str
    collection: "Collection[RawBSONDocument]" = field(repr=False)
    max_document_bytes: int
    is_view: bool = False

    def sibling_collection(self, name: str) -> "Collection[dict[str, Any]]":
        """Return the collection *name* of the same database, with decoded documents."""
        # On the primary and acknowledged: a checkpoint that is not stored would be worse than none.
        decoded: CodecOptions[dict[str, Any]] = CodecOptions()
        return self.collection.database[name].with_options(
            decoded,
            ReadPreference.PRIMARY,
            acknowledged(self.collection.write_concern),
        )

    def on_primary(self) -> "CollectionEndpoint":
        """Return this endpoint with reads from the primary, whatever the URI prefers."""
        primary = self.collection.with_options(read_preference=ReadPreference.PRIMARY)
        return replace(self, collection=primary)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate pymongo's errors in a ``with`` block, adding this collection's name."""
        try:
            yield
        except PyMongoError as error:
            raise named(self.name, error) from error

    def require(self) -> None:
        """
        Refuse a collection that does not exist.

        :raises ConfigError: the database has no collection or view of this name.
        """
        found = _described(self.collection)
        if not found:
            raise ConfigError(f"{self.name}: there is no such collection")


def parse(text: str, own: Callable[[], tuple[str, Options]]) -> CollectionAddress:
    """
    Return the address that *text* contains.

    :param text: an argument of a command.
    :param own: returns the service's own URI and options; called if *text* is no URI.
    :raises ConfigError: it names no collection.
    """
    if "://" in text:
        address = urlsplit(text)
        if address.scheme not in ("mongodb", "mongodb+srv"):
            raise ConfigError("a URI must begin with mongodb:// or mongodb+srv://")
        database, _, collection = unquote(address.path.removeprefix("/")).partition(".")
        if not database or not collection:
            raise ConfigError(f"{server_of(text)}: the URI must end with /DATABASE.COLLECTION")
        return CollectionAddress(text, database, collection)
    # MongoDB allows dots in the name of a collection, but not in that of a database.
    uri, options = own()
    database, _, collection = text.rpartition(".") if text.count(".") == 1 else ("", "", text)
    if text.count(".") > 1:
        database, _, collection = text.partition(".")
    if not collection or text.startswith("."):
        raise ConfigError(f"{text!r}: must be COLLECTION or DATABASE.COLLECTION")
    return CollectionAddress(uri, database or _default_database(uri), collection, options)


@contextmanager
def opened(place: CollectionAddress, batches_at_once: int = 1) -> Iterator[CollectionEndpoint]:
    """
    Connect to a collection for a ``with`` block.

    :param place: its address.
    :param batches_at_once: connections that writing takes, int. Default 1.
    :raises ConfigError: the URI or one of its options is wrong.
    :raises StoreDown: the server does not answer.
    :raises StoreError: the server refuses, the credentials for example.
    """
    size = batches_at_once + OTHER_CONNECTIONS
    ours: Options = {
        "serverSelectionTimeoutMS": SELECTION_MS,
        "socketTimeoutMS": SOCKET_MS,
        "maxPoolSize": size,
        **place.options,
    }
    kept, _ = split(place.uri, ours)
    try:
        client = make_client(place.uri, kept)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    with client:
        try:
            # Connect now, so that a wrong address is reported before anything begins.
            client.admin.command("ping")
            hello = client.admin.command("hello")
            kind = _described(client[place.database][place.collection]).get("type")
        except PyMongoError as error:
            raise named(str(place), error) from error
        collection = client[place.database][place.collection].with_options(
            RAW, write_concern=acknowledged(client.write_concern)
        )
        max_bytes = hello.get("maxBsonObjectSize", MAX_DOCUMENT_BYTES)
        yield CollectionEndpoint(str(place), collection, max_bytes, kind == "view")


def acknowledged(concern: WriteConcern) -> WriteConcern:
    """Return *concern*, or the server's default in place of ``w=0``."""
    # Unacknowledged writes could be lost without an error.
    return concern if concern.acknowledged else WriteConcern()


def named(name: str, error: PyMongoError) -> GreenlineError:
    """
    Return the GreenlineError for an error of pymongo.

    :param name: the collection's name.
    :param error: the error.
    """
    kind = StoreDown if isinstance(error, ConnectionFailure) else StoreError
    # SecantusDB answers a full disk with this code and no reason.
    more = "; its log says why" if getattr(error, "code", None) == INTERNAL_ERROR else ""
    return kind(f"{name}: {first_sentence(error)}{more}")


def _default_database(uri: str) -> str:
    with make_client(uri, {}) as client:
        return database_of(client)


def _described(collection: "Collection[Any]") -> dict[str, Any]:
    """Return the server's description of *collection*, empty if it does not exist."""
    found = collection.database.list_collections(filter={"name": collection.name})
    return next((dict(one) for one in found), {})

"""
One side of a copy: a collection on a server, by the notation that the commands take.

``mongodb://host/database.collection?options`` is a collection anywhere; ``database.collection`` and
``collection`` are on the service's own server.
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
from greenline.mongo.client import DEFAULT_DATABASE, make_client, server_of
from greenline.mongo.errors import first_sentence
from greenline.mongo.options import Options, split

SELECTION_MS, SOCKET_MS = 5_000, 60_000
INTERNAL_ERROR = 1  # MongoDB's code
# Beside the batches: the cursor, the checkpoint, the change stream.
OTHER_CONNECTIONS = 4


@dataclass(frozen=True)
class Place:
    """
    A collection that is not connected yet.

    :param uri: of the server; it may hold a password, so it is never printed.
    :param options: pymongo's, which the URI may replace.
    """

    uri: str = field(repr=False)
    database: str
    collection: str
    options: Options = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{server_of(self.uri)}/{self.database}.{self.collection}"


@dataclass(frozen=True)
class CollectionEndpoint:
    """A collection whose documents are read and written as raw BSON, and its name for errors."""

    name: str
    collection: "Collection[RawBSONDocument]" = field(repr=False)
    max_document_bytes: int
    is_view: bool = False

    def beside(self, name: str) -> "Collection[dict[str, Any]]":
        """Return another collection of the same database, of decoded documents."""
        decoded: CodecOptions[dict[str, Any]] = CodecOptions()
        return self.collection.database[name].with_options(
            decoded,
            ReadPreference.PRIMARY,
            acknowledged(self.collection.write_concern),
        )

    def on_primary(self) -> "CollectionEndpoint":
        """Return the same, read where it is written, whatever the URI prefers."""
        primary = self.collection.with_options(read_preference=ReadPreference.PRIMARY)
        return replace(self, collection=primary)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Let pymongo's errors out of the block as ours, with this collection's name."""
        try:
            yield
        except PyMongoError as error:
            raise named(self.name, error) from error

    def require(self) -> None:
        """
        Refuse a collection that is not there.

        :raises ConfigError: the database has no collection and no view of this name.
        """
        found = _described(self.collection)
        if not found:
            raise ConfigError(f"{self.name}: there is no such collection")


def parse(text: str, own: Callable[[], tuple[str, Options]]) -> Place:
    """
    Return the place that *text* names.

    :param own: returns the service's own URI and options; called where *text* is no URI.
    :raises ConfigError: it names no collection.
    """
    if "://" in text:
        address = urlsplit(text)
        if address.scheme not in ("mongodb", "mongodb+srv"):
            raise ConfigError("a URI must begin with mongodb:// or mongodb+srv://")
        database, _, collection = unquote(address.path.removeprefix("/")).partition(".")
        if not database or not collection:
            raise ConfigError(f"{server_of(text)}: the URI must end with /DATABASE.COLLECTION")
        return Place(text, database, collection)
    uri, options = own()
    database, _, collection = text.rpartition(".") if text.count(".") == 1 else ("", "", text)
    if text.count(".") > 1:
        database, _, collection = text.partition(".")
    if not collection or text.startswith("."):
        raise ConfigError(f"{text!r}: must be COLLECTION or DATABASE.COLLECTION")
    return Place(uri, database or _default_database(uri), collection, options)


@contextmanager
def opened(place: Place, batches_at_once: int = 1) -> Iterator[CollectionEndpoint]:
    """
    Connect to *place* for the length of the block.

    :param batches_at_once: how many connections writing takes, int, default 1.
    :raises StoreDown: the server does not answer, or refuses these credentials.
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
    """Return *concern*, or the server's default for ``w=0``: what is not confirmed may be lost."""
    return concern if concern.acknowledged else WriteConcern()


def named(name: str, error: PyMongoError) -> GreenlineError:
    """Return our error for *error* of the collection *name*."""
    kind = StoreDown if isinstance(error, ConnectionFailure) else StoreError
    # As SecantusDB answers when its disk is full: no more than that it cannot.
    more = "; its log says why" if getattr(error, "code", None) == INTERNAL_ERROR else ""
    return kind(f"{name}: {first_sentence(error)}{more}")


def _default_database(uri: str) -> str:
    with make_client(uri, {}) as client:
        return client.get_default_database(DEFAULT_DATABASE).name


def _described(collection: "Collection[Any]") -> dict[str, Any]:
    """Return what the server says of *collection*; nothing where there is none."""
    found = collection.database.list_collections(filter={"name": collection.name})
    return next((dict(one) for one in found), {})

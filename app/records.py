"""The records that are passed between the layers; their types define the allowed values."""

from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import force_setattr

# Postgres cannot store NUL. Half a surrogate pair is refused by JSON decoding.
NO_NUL = r"^[^\x00]*$"
MAX_ID = 2**63 - 1

MAX_DEPTH = 100  # levels of nested objects and arrays, where any JSON is allowed

Title = Annotated[str, Meta(min_length=1, max_length=500, pattern=NO_NUL)]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=NO_NUL)]
Names = Annotated[list[Name], Meta(max_length=50)]
Id = Annotated[int, Meta(ge=1, le=MAX_ID)]
# An id in MongoDB. The length excludes a trailing newline, before which $ also matches.
DocumentId = Annotated[
    str,
    Meta(min_length=24, max_length=24, pattern=r"^[0-9a-f]{24}$", examples=["6aeb" + "0" * 20]),
]
Role = Literal["system", "user", "assistant", "tool"]
Content = Annotated[str, Meta(min_length=1, max_length=100_000, pattern=NO_NUL)]
Text = Annotated[str, Meta(max_length=5_000, pattern=NO_NUL)]
Short = Annotated[str, Meta(max_length=200, pattern=NO_NUL)]
LINKS = ["https://example.com/1"]
Link = Annotated[
    str, Meta(max_length=2_000, pattern=r"^https?://[^\s\x00]+$(?!\n)", examples=LINKS)
]
OptionalLink = Annotated[
    str, Meta(max_length=2_000, pattern=r"^(https?://[^\s\x00]+)?$(?!\n)", examples=LINKS)
]
Decimal = Annotated[str, Meta(pattern=r"^[0-9]{1,12}(\.[0-9]{1,6})?$(?!\n)", examples=["9.90"])]
Currency = Annotated[
    str,
    Meta(
        min_length=3,
        max_length=3,
        pattern=r"^[A-Z]{3}$",
        description="ISO 4217",
        examples=["EUR"],
    ),
]
Country = Annotated[
    str,
    Meta(
        min_length=2,
        max_length=2,
        pattern=r"^[A-Z]{2}$",
        description="ISO 3166-1",
        examples=["DE"],
    ),
]
Gtin = Annotated[
    str,
    Meta(
        max_length=14,
        pattern=r"^([0-9]{8}|[0-9]{12,14})?$(?!\n)",
        examples=["4006381333931"],
    ),
]
OfferId = Annotated[str, Meta(min_length=1, max_length=100, pattern=NO_NUL)]
Stamp = Annotated[datetime, Meta(tz=True, description="UTC, with microseconds")]
Version = Annotated[int, Meta(ge=1, description="one more at each change; the ETag")]
Status = Literal["pending", "running", "done", "failed"]


def require_shallow(value: Any) -> None:
    """
    Refuse objects and arrays that are nested more than ``MAX_DEPTH`` levels deep.

    :raises ValueError: *value* is nested more deeply.
    """
    # Level by level, without recursion: the value may be nested more deeply than Python's stack.
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"this is nested more than {MAX_DEPTH} levels deep")


def in_utc(time: datetime) -> datetime:
    """Return *time* in UTC, because Postgres accepts no offset of 16 hours or more."""
    try:
        return time.astimezone(UTC)
    except OverflowError:
        # Beyond Python's first or last year once the offset is applied: the nearest time it has.
        end = datetime.min if time.year == datetime.min.year else datetime.max
        return end.replace(tzinfo=UTC)


class BookInput(Struct, frozen=True, forbid_unknown_fields=True):
    """A book as a client sends it; authors and genres by name, in the order they are shown."""

    title: Title
    published: date | None = None
    authors: Names = []
    genres: Names = []


class Named(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An author or a genre, as a book shows it."""

    id: Id
    name: str


class Book(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A book as it is answered."""

    id: Id
    title: str
    published: date | None
    authors: list[Named]
    genres: list[Named]
    created_at: Stamp
    updated_at: Stamp
    version: Version


class AuthorInput(Struct, frozen=True, forbid_unknown_fields=True):
    """An author as a client sends it."""

    name: Name


class Author(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An author as it is answered."""

    id: Id
    name: str
    created_at: Stamp
    updated_at: Stamp
    version: Version


class GenreInput(Struct, frozen=True, forbid_unknown_fields=True):
    """A genre as a client sends it."""

    name: Name


class Genre(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A genre as it is answered."""

    id: Id
    name: str
    created_at: Stamp
    updated_at: Stamp
    version: Version


class StateInput(Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent remembers of a task: one state for each pair, and any JSON object in it."""

    task_id: Id
    agent_id: Id
    data: dict[str, Any]

    def __post_init__(self) -> None:
        require_shallow(self.data)


class State(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A state as it is answered."""

    id: DocumentId
    task_id: Id
    agent_id: Id
    data: dict[str, Any]
    created_at: Stamp
    updated_at: Stamp
    version: Version


class MessageInput(Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a task as a client sends it; an agent's, if it has one."""

    task_id: Id
    role: Role
    content: Content
    agent_id: Id | None = None


class Message(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A message as it is answered."""

    id: DocumentId
    task_id: Id
    role: Role
    content: str
    agent_id: Id | None
    created_at: Stamp
    updated_at: Stamp
    version: Version


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """An amount of money: decimal, so that it stays exact."""

    value: Decimal
    currency: Currency


class ProductInput(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A product as a client sends it; what it lacks is left out, which is not the same as ""."""

    offerId: OfferId  # noqa: N815
    title: Title
    description: Text | UnsetType = UNSET
    link: Link
    imageLink: OptionalLink | UnsetType = UNSET  # noqa: N815
    price: Price
    brand: Short | UnsetType = UNSET
    gtin: Gtin | UnsetType = UNSET
    mpn: Short | UnsetType = UNSET
    slug: Annotated[dict[Country, Short], Meta(max_length=300, examples=[{"DE": "ein-titel"}])] = {}


class Product(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A product as it is answered: without what it lacks."""

    id: DocumentId
    offerId: str  # noqa: N815
    title: str
    description: str | UnsetType = UNSET
    link: str
    imageLink: str | UnsetType = UNSET  # noqa: N815
    price: Price
    brand: str | UnsetType = UNSET
    gtin: str | UnsetType = UNSET
    mpn: str | UnsetType = UNSET
    slug: dict[str, str]
    created_at: Stamp
    updated_at: Stamp
    version: Version


class AgentInput(Struct, frozen=True, forbid_unknown_fields=True):
    """An agent as a client sends it."""

    name: Name


class Agent(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An agent as it is answered."""

    id: Id
    name: str
    created_at: Stamp
    updated_at: Stamp
    version: Version


class TaskInput(Struct, frozen=True, forbid_unknown_fields=True):
    """A task as a client sends it."""

    agent_id: Id
    title: Title
    status: Status = "pending"


class Task(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task as it is answered."""

    id: Id
    agent_id: Id
    title: str
    status: Status
    created_at: Stamp
    updated_at: Stamp
    version: Version


Scopes = Annotated[
    list[Literal["read", "write", "admin"]],
    Meta(min_length=1, max_length=3, extra_json_schema={"uniqueItems": True}),
]


class KeyInput(Struct, frozen=True, forbid_unknown_fields=True):
    """An API key as a client sends it: what it is called, what it may do, and until when."""

    name: Name
    scopes: Scopes
    expires_at: Stamp | None = None

    def __post_init__(self) -> None:
        if len(set(self.scopes)) < len(self.scopes):
            raise ValueError("a scope is given twice")
        if self.expires_at is not None:
            force_setattr(self, "expires_at", in_utc(self.expires_at))


class Key(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An API key as it is answered, without what it is proved by."""

    id: Id
    name: str
    prefix: Annotated[str, Meta(description="what the key begins with, behind gl_")]
    scopes: Scopes
    expires_at: Stamp | None
    previous_until: Annotated[
        Stamp | None, Meta(description="until when the key works that was rotated last")
    ]
    created_at: Stamp
    updated_at: Stamp
    version: Version


class NewKey(Key, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An API key with its token, which is sent once: an Idempotency-Key is refused."""

    key: Annotated[str, Meta(description="store it: it is not shown again")]


class Rotation(Struct, frozen=True, forbid_unknown_fields=True):
    """How long the old key works on beside the new one."""

    overlap_s: Annotated[int, Meta(ge=0, le=7 * 86_400)] = 86_400

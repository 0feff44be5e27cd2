"""The tables for SQLAlchemy, and what the peers that use it read from them."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    DateTime,
    FetchedValue,
    ForeignKey,
    Integer,
    Select,
    Table,
    Text,
    select,
)
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, selectinload


class Base(DeclarativeBase):
    """What the tables have in common: their types in Postgres."""

    type_annotation_map = {int: BigInteger, datetime: DateTime(timezone=True)}  # noqa: RUF012


def _link(name: str, other: str) -> Table:
    """Return the table *name* that links books to *other*, in an order."""
    return Table(
        name,
        Base.metadata,
        Column("book_id", ForeignKey("books.id"), primary_key=True),
        Column(f"{other}_id", ForeignKey(f"{other}s.id"), primary_key=True),
        Column("position", Integer),
    )


book_authors = _link("book_authors", "author")
book_genres = _link("book_genres", "genre")


class Author(Base):
    """Who wrote a book."""

    __tablename__ = "authors"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Genre(Base):
    """What kind of book it is."""

    __tablename__ = "genres"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Book(Base):
    """A book with its authors and genres in their order."""

    __tablename__ = "books"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    published: Mapped[date | None]
    created_at: Mapped[datetime] = mapped_column(server_default=FetchedValue())
    updated_at: Mapped[datetime] = mapped_column(server_default=FetchedValue())
    version: Mapped[int] = mapped_column(server_default=FetchedValue())
    authors: Mapped[list[Author]] = relationship(
        secondary=book_authors, order_by=book_authors.c.position
    )
    genres: Mapped[list[Genre]] = relationship(
        secondary=book_genres, order_by=book_genres.c.position
    )


class Agent(Base):
    """Who does tasks."""

    __tablename__ = "agents"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    version: Mapped[int]


class ApiKey(Base):
    """What a client proves itself with: found by its prefix, kept as a hash."""

    __tablename__ = "api_keys"
    id: Mapped[int] = mapped_column(primary_key=True)
    prefix: Mapped[str]
    hash: Mapped[bytes]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    expires_at: Mapped[datetime | None]


# Eager loading: one more statement for all authors, and one for all genres.
_BOOKS: Select[Any] = select(Book).options(selectinload(Book.authors), selectinload(Book.genres))


def by_id(book_id: int) -> Select[Any]:
    """Select one book."""
    return _BOOKS.where(Book.id == book_id)


def adding(kind: type[Author] | type[Genre], names: Sequence[str]) -> Insert:
    """Insert those of *names* that are new, in one order: who adds the same ones waits for us."""
    return insert(kind).values([{"name": name} for name in sorted(names)]).on_conflict_do_nothing()


def named(kind: type[Author] | type[Genre], names: Sequence[str]) -> Select[Any]:
    """Select the authors or genres called so."""
    return select(kind).where(kind.name.in_(names))


def places(book_id: int, ids: Sequence[int], other: str) -> list[dict[str, int]]:
    """Return the rows that link a book to *ids*, in their order."""
    return [
        {"book_id": book_id, f"{other}_id": each, "position": place}
        for place, each in enumerate(ids, 1)
    ]


def first(limit: int) -> Select[Any]:
    """Select the first *limit* books by id."""
    return _BOOKS.order_by(Book.id).limit(limit)


def agent(agent_id: int) -> Select[Any]:
    """Select one agent."""
    return select(Agent).where(Agent.id == agent_id)


def agents(limit: int) -> Select[Any]:
    """Select the first *limit* agents by id."""
    return select(Agent).order_by(Agent.id).limit(limit)


def key(prefix: str) -> Select[Any]:
    """Select the API key of this prefix."""
    return select(ApiKey).where(ApiKey.prefix == prefix)

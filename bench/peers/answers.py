"""What the FastAPI peers answer, and what they are asked, as pydantic types."""

from datetime import date, datetime
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

Limit = Annotated[int, Query(ge=1, le=100)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Named(BaseModel):
    """An author or a genre."""

    model_config = ConfigDict(from_attributes=True)
    id: int
    name: str


class BookAnswer(BaseModel):
    """A book."""

    model_config = ConfigDict(from_attributes=True)
    id: int
    title: str
    published: date | None
    authors: list[Named]
    genres: list[Named]
    created_at: datetime
    updated_at: datetime
    version: int


class BookInput(BaseModel):
    """A book as a client sends it."""

    model_config = ConfigDict(extra="forbid")
    title: Annotated[str, Field(min_length=1, max_length=500)]
    published: date | None = None
    authors: list[Name] = []
    genres: list[Name] = []


class BookPatch(BaseModel):
    """What is changed of a book."""

    model_config = ConfigDict(extra="forbid")
    title: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    published: date | None = None
    authors: list[Name] | None = None
    genres: list[Name] | None = None


class AgentAnswer(BaseModel):
    """An agent."""

    model_config = ConfigDict(from_attributes=True)
    id: int
    name: str
    created_at: datetime
    updated_at: datetime
    version: int


class AgentsAnswer(BaseModel):
    """A page of agents, without the way to the next one."""

    items: list[AgentAnswer]


class BooksAnswer(BaseModel):
    """A page of books, without the way to the next one."""

    items: list[BookAnswer]

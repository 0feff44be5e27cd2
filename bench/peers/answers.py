"""What the FastAPI peers answer, and what they are asked, as pydantic types."""

from datetime import date, datetime
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict

Limit = Annotated[int, Query(ge=1, le=100)]


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

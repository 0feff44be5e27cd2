"""
FastAPI with SQLAlchemy's asyncio and asyncpg, as their documentation has it; a pool of 20.

Who asks for an agent needs an API key, for which Postgres is asked each time, as in no. 1.
"""

import os
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import delete, func, make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from bench.peers import tables
from bench.peers.answers import (
    AgentAnswer,
    AgentsAnswer,
    BookAnswer,
    BookInput,
    BookPatch,
    BooksAnswer,
    Limit,
)

engine = create_async_engine(
    make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+asyncpg"),
    pool_size=int(os.environ["POSTGRES_POOL_SIZE"]),
    max_overflow=0,
)
sessions = async_sessionmaker(engine, expire_on_commit=False)
app = FastAPI()


async def open_session() -> AsyncIterator[AsyncSession]:
    """Lend a session to a request."""
    async with sessions() as session:
        yield session


Session = Annotated[AsyncSession, Depends(open_session)]
Credentials = Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]


async def require_key(session: Session, credentials: Credentials) -> None:
    """Refuse who has no API key that may read: ``gl_``, its prefix, ``_`` and its secret."""
    token = credentials.credentials
    key = await session.scalar(tables.key(token.removeprefix("gl_").partition("_")[0]))
    if key is None or not compare_digest(key.hash, sha256(token.encode()).digest()):
        raise HTTPException(401)
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        raise HTTPException(401)
    if "read" not in key.scopes:
        raise HTTPException(403)


@app.get("/books", response_model=BooksAnswer)
async def list_books(session: Session, limit: Limit = 20) -> Any:
    """Answer the first books."""
    return {"items": (await session.scalars(tables.first(limit))).all()}


@app.get("/books/{book_id}", response_model=BookAnswer)
async def get_book(session: Session, book_id: int) -> Any:
    """Answer one book."""
    book = await session.scalar(tables.by_id(book_id))
    if book is None:
        raise HTTPException(404)
    return book


async def link(session: AsyncSession, book: tables.Book, **named: Sequence[str] | None) -> None:
    """Give *book* its authors and genres, making those that are new."""
    for other, kind, table in (
        ("author", tables.Author, tables.book_authors),
        ("genre", tables.Genre, tables.book_genres),
    ):
        names = named[f"{other}s"]
        if names is None:
            continue
        await session.execute(delete(table).where(table.c.book_id == book.id))
        if not names:
            continue
        await session.execute(tables.adding(kind, names))
        ids = {each.name: each.id for each in await session.scalars(tables.named(kind, names))}
        rows = tables.places(book.id, [ids[name] for name in names], other)
        await session.execute(table.insert(), rows)


async def shown(session: AsyncSession, book_id: int) -> Any:
    """Return a book as it is stored now."""
    return await session.scalar(tables.by_id(book_id).execution_options(populate_existing=True))


@app.post("/books", response_model=BookAnswer, status_code=201)
async def create_book(session: Session, given: BookInput, response: Response) -> Any:
    """Store a book."""
    book = tables.Book(title=given.title, published=given.published)
    session.add(book)
    await session.flush()
    await link(session, book, authors=given.authors, genres=given.genres)
    stored = await shown(session, book.id)
    await session.commit()
    response.headers["Location"] = f"/books/{book.id}"
    return stored


@app.patch("/books/{book_id}", response_model=BookAnswer)
async def change_book(session: Session, book_id: int, given: BookPatch) -> Any:
    """Merge what is sent into a book."""
    book = await session.scalar(tables.by_id(book_id).with_for_update())
    if book is None:
        raise HTTPException(404)
    for name in given.model_fields_set & {"title", "published"}:
        setattr(book, name, getattr(given, name))
    book.version, book.updated_at = tables.Book.version + 1, func.clock_timestamp()
    await session.flush()
    await link(session, book, authors=given.authors, genres=given.genres)
    stored = await shown(session, book_id)
    await session.commit()
    return stored


@app.delete("/books/{book_id}", status_code=204)
async def delete_book(session: Session, book_id: int) -> None:
    """Delete a book."""
    done = await session.execute(delete(tables.Book).where(tables.Book.id == book_id))
    if not done.rowcount:  # type: ignore[attr-defined]
        raise HTTPException(404)
    await session.commit()


@app.get("/agents", response_model=AgentsAnswer, dependencies=[Depends(require_key)])
async def list_agents(session: Session, limit: Limit = 20) -> Any:
    """Answer the first agents."""
    return {"items": (await session.scalars(tables.agents(limit))).all()}


@app.get("/agents/{agent_id}", response_model=AgentAnswer, dependencies=[Depends(require_key)])
async def get_agent(session: Session, agent_id: int) -> Any:
    """Answer one agent."""
    agent = await session.scalar(tables.agent(agent_id))
    if agent is None:
        raise HTTPException(404)
    return agent

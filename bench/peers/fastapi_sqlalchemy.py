"""FastAPI with SQLAlchemy's asyncio and asyncpg, as their documentation has it; a pool of 20."""

import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from bench.peers import tables
from bench.peers.answers import BookAnswer, BooksAnswer, Limit

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

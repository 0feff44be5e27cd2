"""
FastAPI's threads with SQLAlchemy and psycopg2; a pool of 20.

The session is opened in the handler and not by a dependency, as it usually is: a dependency is
left in a thread of its own turn, and when FastAPI's 40 threads all wait for one of 20 connections
none is left to give one back. From 100 clients on everybody then waits out the pool's 30 s.
"""

import os
from typing import Any

from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import sessionmaker

from bench.peers import tables
from bench.peers.answers import BookAnswer, BooksAnswer, Limit

engine = create_engine(
    make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg2"),
    pool_size=int(os.environ["POSTGRES_POOL_SIZE"]),
    max_overflow=0,
    # psycopg2 gives times in the session's zone; asyncpg always in UTC.
    connect_args={"options": "-c timezone=UTC"},
)
sessions = sessionmaker(engine, expire_on_commit=False)
app = FastAPI()


@app.get("/books", response_model=BooksAnswer)
def list_books(limit: Limit = 20) -> Any:
    """Answer the first books."""
    with sessions() as session:
        return {"items": session.scalars(tables.first(limit)).all()}


@app.get("/books/{book_id}", response_model=BookAnswer)
def get_book(book_id: int) -> Any:
    """Answer one book."""
    with sessions() as session:
        book = session.scalar(tables.by_id(book_id))
    if book is None:
        raise HTTPException(404)
    return book

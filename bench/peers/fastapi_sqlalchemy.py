"""
FastAPI with SQLAlchemy's asyncio and asyncpg, as their documentation has it; a pool of 20.

Who asks for an agent needs an API key, for which Postgres is asked each time, as in no. 1.
"""

import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from bench.peers import tables
from bench.peers.answers import AgentAnswer, AgentsAnswer, BookAnswer, BooksAnswer, Limit

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

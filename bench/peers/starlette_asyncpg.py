"""
Starlette with bare asyncpg and our service's statements: Postgres makes the JSON.

asyncpg prepares each statement once a connection by itself, and its pool resets each connection
that comes back; both are its defaults. A pool of 20.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

SQL = Path(__file__).resolve().parents[2] / "app" / "store" / "sql" / "books" / "document.sql"
SIZE = int(os.environ["POSTGRES_POOL_SIZE"])
BOOKS = f"select row_to_json(book)::text from ({SQL.read_text(encoding='utf-8')}) book"
BY_ID = f"with page as (select * from books where id = $1) {BOOKS}"
LIST = f"with page as (select * from books order by id limit $1) {BOOKS} order by id"


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """Hold the pool for as long as the application runs."""
    url = os.environ["DATABASE_URL"]
    async with asyncpg.create_pool(url, min_size=SIZE, max_size=SIZE) as pool:
        yield {"pool": pool}


def json(text: str) -> Response:
    """Answer with JSON that is text already."""
    return Response(text, media_type="application/json")


async def list_books(request: Request) -> Response:
    """Answer the first books."""
    limit = request.query_params.get("limit", "20")
    if not limit.isdecimal() or not 1 <= int(limit) <= 100:
        raise HTTPException(422)
    rows = await request.state.pool.fetch(LIST, int(limit))
    return json(f'{{"items":[{",".join(row[0] for row in rows)}]}}')


async def get_book(request: Request) -> Response:
    """Answer one book."""
    document = await request.state.pool.fetchval(BY_ID, request.path_params["book_id"])
    if document is None:
        raise HTTPException(404)
    return json(document)


app = Starlette(
    lifespan=lifespan,
    routes=[Route("/books", list_books), Route("/books/{book_id:int}", get_book)],
)

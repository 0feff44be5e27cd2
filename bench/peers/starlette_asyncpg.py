"""
Starlette with bare asyncpg and our service's statements: Postgres makes the JSON.

asyncpg prepares each statement once a connection by itself, and its pool resets each connection
that comes back; both are its defaults. A pool of 20.
"""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.records import BookInput

SQL = Path(__file__).resolve().parents[2] / "app" / "store" / "sql" / "books"
SIZE = int(os.environ["POSTGRES_POOL_SIZE"])


def read(name: str) -> str:
    """Return the text of one of the service's statements."""
    return (SQL / f"{name}.sql").read_text(encoding="utf-8")


def numbered(text: str) -> tuple[str, list[str]]:
    """Return a statement with numbers for its parameters, and their names."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    return re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", text), names


BOOKS = f"select row_to_json(book)::text from ({read('document')}) book"
BY_ID = f"with page as (select * from books where id = $1) {BOOKS}"
LOCKED = f"with page as (select * from books where id = $1 for no key update) {BOOKS}"
INSERT = "insert into books (title, published) values ($1, $2) returning id"
UPDATE = (
    "update books set title = $2, published = $3, updated_at = clock_timestamp(), "
    "version = version + 1 where id = $1"
)
CHANGED = f"with page as ({UPDATE} returning *) {BOOKS}"
DELETE = "delete from books where id = $1 returning id"
LINK = [
    numbered(text.format(one)) for text in read("link").split(";") for one in ("author", "genre")
]
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


def links(book_id: int, names: list[str]) -> str:
    """Return the links of a book to *names* as JSON."""
    made = [{"book_id": book_id, "name": name, "position": n} for n, name in enumerate(names, 1)]
    return msgspec.json.encode(made).decode()


async def link(conn: Any, book_id: int, book: BookInput) -> None:
    """Give a book its authors and genres, making those that are new."""
    values = {
        "author_links": links(book_id, book.authors),
        "genre_links": links(book_id, book.genres),
        "ids": [book_id],
    }
    for text, names in LINK:
        await conn.execute(text, *(values[name] for name in names))


async def create_book(request: Request) -> Response:
    """Store a book."""
    book = msgspec.json.decode(await request.body(), type=BookInput)
    async with request.state.pool.acquire() as conn, conn.transaction():
        book_id = await conn.fetchval(INSERT, book.title, book.published)
        await link(conn, book_id, book)
        document = await conn.fetchval(BY_ID, book_id)
    answer = json(document)
    answer.status_code, answer.headers["Location"] = 201, f"/books/{book_id}"
    return answer


async def change_book(request: Request) -> Response:
    """Merge what is sent into a book."""
    patch, book_id = msgspec.json.decode(await request.body()), request.path_params["book_id"]
    async with request.state.pool.acquire() as conn, conn.transaction():
        document = await conn.fetchval(LOCKED, book_id)
        if document is None:
            raise HTTPException(404)
        shown = msgspec.json.decode(document)
        now = {
            "title": shown["title"],
            "published": shown["published"],
            "authors": [each["name"] for each in shown["authors"]],
            "genres": [each["name"] for each in shown["genres"]],
        }
        book = msgspec.convert({**now, **patch}, BookInput)
        if (book.authors, book.genres) == (now["authors"], now["genres"]):
            return json(await conn.fetchval(CHANGED, book_id, book.title, book.published))
        await conn.execute(UPDATE, book_id, book.title, book.published)
        await link(conn, book_id, book)
        return json(await conn.fetchval(BY_ID, book_id))


async def delete_book(request: Request) -> Response:
    """Delete a book."""
    if await request.state.pool.fetchval(DELETE, request.path_params["book_id"]) is None:
        raise HTTPException(404)
    return Response(status_code=204)


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/books", list_books),
        Route("/books", create_book, methods=["POST"]),
        Route("/books/{book_id:int}", get_book),
        Route("/books/{book_id:int}", change_book, methods=["PATCH"]),
        Route("/books/{book_id:int}", delete_book, methods=["DELETE"]),
    ],
)

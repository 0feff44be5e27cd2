"""``/books``: books with their authors and genres."""

from typing import Annotated

from flask import Blueprint, Response, url_for
from msgspec import Meta, Struct

from app.api import messages
from app.records import BookInput
from app.store.books import Books


class Page(Struct, frozen=True, forbid_unknown_fields=True):
    """The query string of a list."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20


def blueprint(books: Books) -> Blueprint:
    """Return the routes over *books*."""
    routes = Blueprint("books", __name__, url_prefix="/books")

    @routes.get("")
    def list_books() -> Response:
        page = messages.query(Page)
        return messages.json(f'{{"items":{books.list(page.limit)}}}')

    @routes.get("/<id:book_id>")
    def get_book(book_id: int) -> Response:
        return messages.json(books.get(book_id))

    @routes.post("")
    def create_book() -> Response:
        book_id, document = books.create(messages.body(BookInput))
        response = messages.json(document, 201)
        response.headers["Location"] = url_for("books.get_book", book_id=book_id)
        return response

    @routes.put("/<id:book_id>")
    def replace_book(book_id: int) -> Response:
        return messages.json(books.replace(book_id, messages.body(BookInput)))

    @routes.delete("/<id:book_id>")
    def delete_book(book_id: int) -> Response:
        books.delete(book_id)
        return messages.nothing()

    return routes

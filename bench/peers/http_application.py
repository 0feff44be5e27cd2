"""
The Flask application of ``bench.http``, with a route for each shape of a request.

It is made from a class, so that Flask's and ours differ in nothing else. Half of its routes are in
a blueprint, as those of most applications are.
"""

import json
from collections.abc import Iterator
from typing import Any

from flask import Blueprint, Flask, Response, jsonify, request

VERSION = "v17"  # the ETag of /conditional
CHUNKS = 20
BOOKS = 400


def books() -> list[dict[str, Any]]:
    """Return the list whose JSON has 46 kB."""
    return [
        {
            "id": number,
            "title": f"The collected letters, volume {number}",
            "author": f"Author {number % 17}",
            "pages": 100 + number,
            "price": number / 4,
            "in_stock": number % 3 == 0,
        }
        for number in range(BOOKS)
    ]


def chunks() -> Iterator[bytes]:
    """Yield a list in JSON, an item in each chunk."""
    for number in range(CHUNKS):
        begin, end = "[" if number == 0 else ",", "]" if number == CHUNKS - 1 else "\n"
        item = {"id": number, "title": f"The collected letters, volume {number}"}
        yield f"{begin}{json.dumps(item)}{end}".encode()


def made(cls: type[Flask]) -> Flask:
    """Return the application, an instance of *cls*."""
    app = cls(__name__)
    shop = Blueprint("shop", __name__)

    @app.get("/")
    def answer() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/async")
    async def answer_async() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/conditional")
    def conditional() -> Response:
        response = jsonify(status="ok")
        response.set_etag(VERSION)
        return response.make_conditional(request)

    @app.get("/stream")
    def stream() -> Response:
        return Response(chunks(), mimetype="application/json")

    @shop.get("/items/<int:number>")
    def item(number: int) -> dict[str, Any]:
        name, request_id = request.args["name"], request.headers["X-Request-Id"]
        return {"number": number, "name": name, "request_id": request_id}

    @shop.post("/echo")
    def echo() -> Any:
        return request.get_json()

    @shop.post("/form")
    def form() -> dict[str, str]:
        return {
            "name": request.form["name"],
            "city": request.form["city"],
            "session": request.cookies["session"],
        }

    @shop.get("/books")
    def listed() -> list[dict[str, Any]]:
        return books()

    app.register_blueprint(shop)
    return app

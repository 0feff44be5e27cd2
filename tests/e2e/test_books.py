"""``/books`` over HTTP."""

import http.client
import re

import pytest

from tests.support import Service, wait_until

EARTHSEA = {
    "title": "A Wizard of Earthsea",
    "published": "1968-11-01",
    "authors": ["Ursula K. Le Guin", "Ruth Robbins"],
    "genres": ["fantasy"],
}
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def names(things: list[dict[str, object]]) -> list[object]:
    return [thing["name"] for thing in things]


def test_a_list_has_twenty_books_by_default(api: Service) -> None:
    """The sample's books come in the order of their ids, whole."""
    answer = api.get("/books")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    items = answer.json["items"]
    assert [book["id"] for book in items] == list(range(1, 21))
    assert all(book["authors"] and book["genres"] for book in items)


def test_the_limit_is_obeyed(api: Service) -> None:
    """One to a hundred books, as asked."""
    assert len(api.get("/books?limit=1").json["items"]) == 1
    assert len(api.get("/books?limit=100").json["items"]) == 100


def test_the_sample_has_a_thousand_books(api: Service) -> None:
    """The fixed seed gives a thousand, each with what it needs."""
    assert api.get("/books/1000").json["id"] == 1000


@pytest.mark.parametrize("query", ["limit=101", "limit=0", "limit=x", "limit=1&limit=2", "page=2"])
def test_a_query_that_means_nothing_is_a_422(api: Service, query: str) -> None:
    """Out of range, not a number, given twice, unknown: told, never guessed."""
    answer = api.get(f"/books?{query}")
    assert answer.status == 422
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "limit" in answer.body.decode() or "page" in answer.json["detail"]


def test_a_book_lives_through_its_whole_life(api: Service) -> None:
    """Created, read, replaced and deleted, each answer telling what is stored."""
    created = api.ask("POST", "/books", EARTHSEA)
    assert created.status == 201
    book = created.json
    assert created.headers["Location"] == f"/books/{book['id']}"
    assert (book["title"], book["published"]) == (EARTHSEA["title"], "1968-11-01")
    assert names(book["authors"]) == EARTHSEA["authors"]
    assert names(book["genres"]) == ["fantasy"]
    assert STAMP.fullmatch(book["created_at"])
    path = f"/books/{book['id']}"
    assert api.get(path).body == created.body

    replaced = api.ask("PUT", path, {"title": "Tehanu", "authors": ["Ursula K. Le Guin"]})
    assert replaced.status == 200
    after = replaced.json
    assert (after["title"], after["published"], after["genres"]) == ("Tehanu", None, [])
    assert after["authors"] == book["authors"][:1]
    assert after["created_at"] == book["created_at"]
    assert after["updated_at"] > book["updated_at"]

    deleted = api.ask("DELETE", path)
    assert (deleted.status, deleted.body) == (204, b"")
    assert api.get(path).status == 404


def test_a_name_given_twice_counts_once_and_keeps_its_place(api: Service) -> None:
    """Authors are shown in the order given, each once."""
    book = api.ask("POST", "/books", {"title": "Twice", "authors": ["Z", "A", "Z"]}).json
    assert names(book["authors"]) == ["Z", "A"]
    api.ask("DELETE", f"/books/{book['id']}")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "book_id", ["987654321", "9223372036854775807", "9223372036854775808", "x"]
)
def test_what_is_not_there_is_a_404(api: Service, method: str, book_id: str) -> None:
    """Also for ids that no bigint could hold."""
    answer = api.ask(method, f"/books/{book_id}", EARTHSEA if method == "PUT" else None)
    assert (answer.status, answer.json["status"]) == (404, 404)


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({"title": ""}, 422, "/title"),
        ({"title": "x" * 501}, 422, "/title"),
        ({"title": "nul \0"}, 422, "/title"),
        ({}, 422, ""),
        ({"title": "x", "authors": ["ok", ""]}, 422, "/authors/1"),
        ({"title": "x", "published": "yesterday"}, 422, "/published"),
        ({"title": "x", "isbn": 1}, 422, ""),
        ([], 422, ""),
        (b'{"title":', 400, None),
        (b'{"title":"\\ud800"}', 400, None),
        (b'{"title":"\xff"}', 400, None),
        (b"[" * 100_000, 422, ""),
    ],
    ids=[
        "empty", "long", "nul", "missing", "item", "date", "unknown", "array",
        "cut", "surrogate", "bytes", "deep",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("method", "path"), [("POST", "/books"), ("PUT", "/books/1")])
def test_a_bad_body_is_told_where(
    api: Service, method: str, path: str, body: object, status: int, pointer: str | None
) -> None:
    """Never a 500 for what a client can send; a 422 points at the fault."""
    answer = api.ask(method, path, body, {"Content-Type": "application/json"})
    assert answer.status == status
    assert answer.json.get("pointer") == pointer
    assert answer.json["request_id"] == answer.headers["X-Request-Id"]


def test_another_media_type_is_a_415(api: Service) -> None:
    """The body is JSON and says so."""
    assert api.ask("POST", "/books", b"title=x", {"Content-Type": "text/plain"}).status == 415


def test_a_body_beyond_a_megabyte_is_a_413(api: Service) -> None:
    """A body of more than 1 MiB is refused by its length."""
    answer = api.ask(
        "POST", "/books", b" " * (1024 * 1024 + 1), {"Content-Type": "application/json"}
    )
    assert answer.status == 413


def test_a_chunked_body_beyond_a_megabyte_is_a_413(api: Service) -> None:
    """A body that does not tell its length is not cut and taken for a shorter one."""
    book = b'{"title": "chunked"}' + b" " * (1024 * 1024)
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=30)
    chunks = (book[start : start + 65_536] for start in range(0, len(book), 65_536))
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/books", body=chunks, headers=headers, encode_chunked=True)
    answer = connection.getresponse()
    assert (answer.status, b"1048576 bytes" in answer.read()) == (413, True)
    connection.close()


def test_a_method_that_is_not_there_is_a_405_with_allow(api: Service) -> None:
    """The answer lists what would be allowed."""
    answer = api.ask("PATCH", "/books/1", {})
    assert answer.status == 405
    assert {"GET", "PUT", "DELETE"} <= set(answer.headers["Allow"].split(", "))


def test_a_request_id_is_kept_when_well_formed_and_made_otherwise(api: Service) -> None:
    """The id is in the answer, in the problem document and in the log line."""
    assert api.get("/books/1", headers={"X-Request-Id": "abc-1.2:3"}).headers["X-Request-Id"] == (
        "abc-1.2:3"
    )
    for bad in ("", "a b", "x" * 129, "a\tb"):
        made = api.get("/books/987654321", headers={"X-Request-Id": bad})
        assert re.fullmatch(r"[0-9a-f]{32}", made.headers["X-Request-Id"])
        assert made.json["request_id"] == made.headers["X-Request-Id"]
        line = f"id={made.headers['X-Request-Id']}"
        wait_until(lambda line=line: line in api.log, "the log line")

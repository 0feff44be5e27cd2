"""``/books`` over HTTP."""

import http.client
import re
from urllib.parse import quote

import pytest

from tests.helpers.support import Service, wait_until

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


def test_a_patch_leaves_authors_and_genres_as_they_are(api: Service) -> None:
    """They are named as a client names them; null takes them away."""
    book = api.ask("POST", "/books", EARTHSEA).json
    path = f"/books/{book['id']}"
    patched = api.ask("PATCH", path, {"title": "Tehanu"}).json
    assert {**patched, "updated_at": book["updated_at"]} == {
        **book,
        "title": "Tehanu",
        "version": 2,
    }
    patched = api.ask("PATCH", path, {"authors": ["Ruth Robbins", "New"], "genres": None}).json
    assert names(patched["authors"]) == ["Ruth Robbins", "New"]
    assert patched["authors"][0] == book["authors"][1]
    assert (patched["genres"], patched["published"]) == ([], "1968-11-01")
    api.ask("DELETE", path)


@pytest.mark.parametrize("kind", ["authors", "genres"])
def test_a_new_name_shows_in_the_books_and_in_their_etag(api: Service, kind: str) -> None:
    """Who has a book of before is sent the new one; one that books show cannot be deleted."""
    sent = {"title": "Renamed", kind: [f"old of {kind}"]}
    created = api.ask("POST", "/books", sent)
    path, one = created.headers["Location"], created.json[kind][0]["id"]
    assert api.ask("PATCH", f"/{kind}/{one}", {"name": f"new of {kind}"}).status == 200
    seen = {"If-None-Match": created.headers["ETag"]}
    now = api.get(path, headers=seen)
    assert (now.status, now.headers["ETag"]) == (200, '"2"')
    assert names(now.json[kind]) == [f"new of {kind}"]
    assert now.json["updated_at"] > created.json["updated_at"]
    for refused in (
        api.ask("DELETE", f"/{kind}/{one}"),
        api.ask("DELETE", f"/{kind}/batch", {"ids": [one]}),
        api.ask("DELETE", f"/{kind}?name=new+of+{kind}"),
    ):
        assert (refused.status, refused.json["code"]) == (409, "conflict")
    api.ask("DELETE", path)
    assert api.ask("DELETE", f"/{kind}/{one}").status == 204


def test_a_book_of_an_unknown_day_comes_last(api: Service) -> None:
    """And first in the opposite order; cursors lead past it."""
    days = ["1968-11-01", None, "1972-01-01", None]
    items = [{"title": f"{n}", "published": day, "authors": ["Days"]} for n, day in enumerate(days)]
    api.ask("POST", "/books/batch", {"items": items})
    for order, titles in (("published", "0213"), ("-published", "3120")):
        url, seen = f"/books?author=Days&limit=1&order={order}", ""
        page = api.get(url).json
        for _ in range(4):
            seen += "".join(book["title"] for book in page["items"])
            if page["next"] is not None:
                page = api.get(f"{url}&after={page['next']}").json
        assert seen == titles
    assert api.ask("DELETE", "/books?author=Days").json == {"deleted": 4}


def test_a_task_of_no_agent_is_a_conflict_and_an_agents_tasks_go_with_it(api: Service) -> None:
    """Tasks belong to agents, in the database too."""
    refused = api.ask("POST", "/tasks", {"agent_id": 987654321, "title": "x"})
    assert (refused.status, refused.json["constraint"]) == (409, "tasks_agent_id_fkey")
    agent = api.ask("POST", "/agents", {"name": "short-lived"}).json["id"]
    task = api.ask("POST", "/tasks", {"agent_id": agent, "title": "x"})
    assert (task.status, task.json["status"]) == (201, "pending")
    assert api.ask("DELETE", "/agents/by-name/short-lived").status == 204
    assert api.get(task.headers["Location"]).status == 404


@pytest.mark.parametrize(
    "name",
    ["with blank", "with/slash", "ünï", "100%", "batch", "/before", "//", "behind/", "two\nlines",
     "\n", "line\n", "?#", " "],
)  # fmt: skip
def test_an_agent_is_worked_on_by_name_too(api: Service, name: str) -> None:
    """Whatever its name has in it."""
    path = f"/agents/by-name/{quote(name, safe='')}"
    assert api.get(path).status == 404
    created = api.ask("POST", "/agents", {"name": name})
    found = api.get(path)
    assert found.body == created.body
    assert api.get(path, headers={"If-None-Match": found.headers["ETag"]}).status == 304
    assert api.ask("PUT", path, {"name": name}).json["version"] == 2
    assert api.ask("PATCH", path, {}, {"If-Match": found.headers["ETag"]}).status == 412
    assert api.ask("PATCH", path, {}).json["version"] == 3
    assert api.ask("DELETE", path).status == 204
    assert api.get(path).status == 404


def test_the_next_agent_of_a_name_is_another_one(api: Service) -> None:
    """A tag that was read by name is not that of who has the name now, in the same version."""
    path = "/agents/by-name/heir"
    api.ask("POST", "/agents", {"name": "heir"})
    tag = api.get(path).headers["ETag"]
    assert api.ask("DELETE", path, None, {"If-Match": tag}).status == 204
    api.ask("POST", "/agents", {"name": "heir"})
    assert api.get(path, headers={"If-None-Match": tag}).status == 200
    for method, body in (("PUT", {"name": "heir"}), ("PATCH", {}), ("DELETE", None)):
        for other in (tag, '"1"'):
            assert api.ask(method, path, body, {"If-Match": other}).status == 412
    for method, body in (("PUT", {"name": "heir"}), ("PATCH", {}), ("DELETE", None)):
        now = api.get(path).headers["ETag"]
        answer = api.ask(method, path, body, {"If-Match": now})
        assert answer.status in (200, 204)
        assert method == "DELETE" or answer.headers["ETag"] == api.get(path).headers["ETag"]


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
        ({"title": "x", "isbn": 1}, 422, "/isbn"),
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
def test_a_bad_body_is_answered_with_the_place_of_the_fault(
    api: Service, method: str, path: str, body: object, status: int, pointer: str | None
) -> None:
    """Never a 500 for what a client can send; a 422 points at the fault."""
    answer = api.ask(method, path, body, {"Content-Type": "application/json"})
    assert answer.status == status
    pointers = [fault["pointer"] for fault in answer.json.get("errors", ())]
    assert pointers == ([] if pointer is None else [pointer])
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
    answer = api.ask("POST", "/books/1", {})
    assert answer.status == 405
    assert {"GET", "PUT", "PATCH", "DELETE"} <= set(answer.headers["Allow"].split(", "))


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

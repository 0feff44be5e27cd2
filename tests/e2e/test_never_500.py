"""Whatever a client sends, it gets a problem document that says what is wrong, and no 500."""

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from app.api import cursors
from tests.helpers.support import Answer, Service

JSON = b"Content-Type: application/json\r\n"
DEEP = 100_000
# What is no agent, no batch, and no other body either.
BODIES = {
    "empty": b"",
    "blank": b" ",
    "cut short": b"{",
    "not JSON": b"{'name': 'x'}",
    "more behind it": b'{"x":1}x',
    "more behind a wrong type": b"5\xff\xff",
    "null": b"null",
    "array": b"[]",
    "text": b'"x"',
    "number": b"5",
    "no UTF-8": b"\xff",
    "no UTF-8 in a text": b'{"name":"\xff"}',
    "overlong UTF-8": b'{"name":"\xc0\x80"}',
    "UTF-16": '{"name":"x"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"name":"x"}',
    "high surrogate": b'{"name":"\\ud800"}',
    "low surrogate": b'{"name":"\\udc00"}',
    "surrogate as a name": b'{"\\ud800":1}',
    "surrogate in UTF-8": b'{"name":"\xed\xa0\x80"}',
    "NUL": b'{"name":"a\\u0000b"}',
    "raw NUL": b'{"name":"a\0b"}',
    "NaN": b'{"name":NaN}',
    "Infinity": b'{"name":-Infinity}',
    "beyond a float": b'{"name":1e400}',
    "beyond a float, elsewhere": b'{"items":[{"id":1,"patch":{"x":-1e400}}]}',
    "five thousand digits": b'{"name":%b}' % (b"1" * 5_000),
    "deep arrays": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep, and not closed": b"[" * DEEP,
    "deep in a field": b'{"name":%b%b}' % (b"[" * DEEP, b"]" * DEEP),
    "deep in a patch": b'{"items":[{"id":1,"patch":{"x":%b%b}}]}' % (b"[" * DEEP, b"]" * DEEP),
    "long text": b'{"name":"%b"}' % (b"x" * 500_000),
    "long name": b'{"%b":1}' % (b"x" * 500_000),
    "empty name": b'{"":1}',
    "many fields": b"{%b}" % b",".join(b'"f%d":1' % n for n in range(20_000)),
    "no items": b'{"items":[],"ids":[]}',
    "many items": b'{"items":[%b]}' % b",".join([b"{}"] * 50_000),
    "ids of all kinds": b'{"ids":[0,-1,9223372036854775808,1.5,"1",null,true,"\\u0000"]}',
    "a version of all kinds": b'{"items":[{"id":1,"patch":{},"version":99999999999999999999999}]}',
    "too large": b'{"name":"%b"}' % (b"x" * 1_100_000),
}
PATHS = {
    "id zero": b"/agents/0",
    "negative id": b"/agents/-1",
    "id beyond 64 bits": b"/agents/9223372036854775808",
    "id of 200 digits": b"/agents/" + b"9" * 200,
    "digits of another script": "/agents/٣".encode(),
    "the same, quoted": b"/agents/%D9%A3",
    "NUL": b"/agents/%00",
    "NUL in a name": b"/agents/by-name/a%00b",
    "no UTF-8": b"/agents/%ff",
    "no UTF-8 in a name": b"/agents/by-name/%ff",
    "surrogate in a name": b"/agents/by-name/%ED%A0%80",
    "bytes": b"/agents/by-name/\xff",
    "raw NUL": b"/agents/\x00",
    "half a quotation": b"/agents/by-name/%",
    "no quotation": b"/agents/%zz",
    "long name": b"/agents/by-name/" + b"x" * 3_000,
    "longer than any": b"/agents/by-name/" + b"x" * 100_000,
    "empty name": b"/agents/by-name/",
    "slash behind it": b"/agents/1/",
    "two slashes": b"/agents//1",
    "parameters": b"/agents/1;x=1",
    "plus sign": b"/agents/+1",
    "blank": b"/agents/1%20",
    "above the docs": b"/docs/../../etc/passwd",
    "above the docs, quoted": b"/docs/..%2f..%2fetc%2fpasswd",
    "elsewhere": b"/docs//etc/passwd",
    "a file beside those of the docs": b"/docs/docs.py",
    "no path": b"agents",
    "star": b"*",
}
QUERIES = {
    "NUL": b"name=a%00b",
    "no UTF-8": b"name=%ff",
    "surrogate": b"name=%ED%A0%80",
    "bytes": b"name=\xff",
    "empty": b"name=",
    "long": b"name=" + b"x" * 201,
    "longer than any": b"name=" + b"x" * 100_000,
    "null": b"page=null",
    "limit zero": b"limit=0",
    "limit above": b"limit=101",
    "no number": b"limit=many",
    "beyond a float": b"limit=1e400",
    "NaN": b"limit=NaN",
    "a thousand digits": b"limit=" + b"9" * 1_000,
    "digits of another script": b"limit=%D9%A3",
    "twice": b"limit=1&limit=2",
    "no value": b"limit",
    "page zero": b"page=0",
    "page beyond": b"page=1000000000",
    "order unknown": b"order=secret",
    "order with SQL": b"order=id%3B%20drop%20table%20agents",
    "two minuses": b"order=--id",
    "name unknown": b"colour=red",
    "name of NUL": b"%00=1",
    "no name": b"=1",
    "quotation only": b"%=",
    "many": b"&".join(b"f%d=1" % number for number in range(400)),
    "both ways": b"before=x&after=x",
    "cursor of nothing": b"after=x",
    "cursor of no base64": b"after=!!!",
    "cursor of bytes": b"after=%ff",
    "long cursor": b"after=" + b"A" * 3_500,
    "cursor with a NUL": b"order=name&after=" + cursors.encode("agents name", "a\0", 1).encode(),
    "cursor out of time": b"order=created_at&after="
    + cursors.encode("agents created_at", "9999-12-31T23:59:59-23:59", 1).encode(),
    "cursor before time": b"order=created_at&after="
    + cursors.encode("agents created_at", "0001-01-01T00:00:00+23:59", 1).encode(),
    "cursor beyond 64 bits": b"after=" + cursors.encode("agents id", 2**70, 1).encode(),
    "cursor with id zero": b"after=" + cursors.encode("agents id", 1, 0).encode(),
    "cursor of another order": b"after=" + cursors.encode("agents name", "a", 1).encode(),
}


def send(api: Service, request: bytes) -> Answer:
    """Send these bytes, as no client library would."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=30) as client:
        client.sendall(request)
        response = http.client.HTTPResponse(client, method=request.partition(b" ")[0].decode())
        response.begin()
        return Answer(response.status, dict(response.getheaders()), response.read())


def ask(
    api: Service, method: bytes, path: bytes, headers: bytes = b"", body: bytes | None = None
) -> Answer:
    """Send a request, whatever is in its parts."""
    length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
    head = b"%b %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b%b\r\n"
    return send(api, head % (method, path, headers, length) + (body or b""))


def require_problem(answer: Answer) -> None:
    """Require an answer that blames the client, in the form of all errors."""
    assert 400 <= answer.status < 500, answer
    assert answer.headers["Content-Type"] == "application/problem+json", answer
    assert answer.json["status"] == answer.status
    assert answer.json["code"] != "internal_error"


def require_refusal(answer: Answer) -> None:
    """Require the same of what may have been refused by the server, in whose words ever."""
    if "problem" in answer.headers["Content-Type"]:
        require_problem(answer)
    else:
        assert answer.status in (400, 414, 417, 431), answer


@pytest.fixture(scope="module")
def bodies(api: Service) -> list[tuple[bytes, bytes, bytes]]:
    """Method, path and content type of each operation that takes a body."""
    for path in ("/agents", "/authors", "/genres"):
        api.ask("POST", path, {"name": "somebody"})
    api.ask("POST", "/keys", {"name": "somebody", "scopes": ["read"]})
    return list(_bodies(api.get("/openapi.json").json))


def _bodies(document: dict[str, Any]) -> Iterator[tuple[bytes, bytes, bytes]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for kind in operation.get("requestBody", {}).get("content", ()):
                item_id = "1" if _has_number(operation) else "0" * 24
                filled = path.replace("{id}", item_id).replace("{name}", "somebody")
                yield method.upper().encode(), filled.encode(), kind.encode()


def _has_number(operation: dict[str, Any]) -> bool:
    return any(one["schema"].get("type") == "integer" for one in operation["parameters"])


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_bad_body_is_refused_by_every_operation(
    api: Service, bodies: list[tuple[bytes, bytes, bytes]], body: bytes
) -> None:
    """None of them gets as far as a database."""
    assert bodies
    for method, path, kind in bodies:
        require_problem(ask(api, method, path, b"Content-Type: %b\r\n" % kind, body))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_bad_path_leads_nowhere(api: Service, path: bytes) -> None:
    """Whatever is to be done there."""
    for method, body in ((b"GET", None), (b"DELETE", None), (b"PUT", b'{"name":"x"}')):
        require_refusal(ask(api, method, path, JSON, body))


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_bad_query_is_refused(api: Service, query: bytes) -> None:
    """By a list, and by what deletes all that it finds."""
    for method in (b"GET", b"DELETE"):
        require_refusal(ask(api, method, b"/agents?" + query))


@pytest.mark.parametrize(
    "header",
    [b"", b'""', b'"x"', b"W/", b'W/"9"', b'"01"', b'"' + b"9" * 5_000 + b'"', b"\xff", b'"\xb2"',
     b",,,", b'"1', b"1" * 7_000],
    ids=["nothing", "empty", "a word", "half", "weak", "a zero before", "5,000 digits", "a byte",
         "a digit of another kind", "commas", "half a quotation", "long"],
)  # fmt: skip
def test_a_bad_if_match_matches_nothing(api: Service, header: bytes) -> None:
    """So nothing is changed; as If-None-Match it is no reason to answer nothing."""
    name = json.dumps({"name": f"matched {header.hex()[:100]}"}).encode()
    path = ask(api, b"POST", b"/agents", JSON, name).headers["Location"].encode()
    refused = ask(api, b"PUT", path, JSON + b"If-Match: %b\r\n" % header, name)
    assert refused.status == 412
    require_problem(refused)
    assert ask(api, b"GET", path, b"If-None-Match: %b\r\n" % header).status in (200, 304)
    assert ask(api, b"DELETE", path).status == 204


@pytest.mark.parametrize(
    "key", [b"", b"a b", b"a\tb", b"x" * 256, b"\xff", "é".encode()],
    ids=["nothing", "blank", "tab", "long", "a byte", "a letter"],
)  # fmt: skip
def test_a_bad_idempotency_key_is_refused(api: Service, key: bytes) -> None:
    """Nothing is created."""
    answer = ask(api, b"POST", b"/agents", JSON + b"Idempotency-Key: %b\r\n" % key, b'{"name":"k"}')
    assert answer.status == 422
    require_problem(answer)


@pytest.mark.parametrize(
    "header",
    [b"Range: bytes=0-1", b"Range: bytes=x", b"Cookie: \xff=\xff", b"X-Request-Id: \xff",
     b"If-Modified-Since: never", b"Accept-Encoding: \xff", b"Accept: text/html;q=x",
     b"X-Forwarded-Proto: gopher", b"Expect: 100-continue"],
)  # fmt: skip
def test_headers_that_mean_nothing_here_change_nothing(api: Service, header: bytes) -> None:
    """They are optional by their nature."""
    answer = ask(api, b"GET", b"/agents", header + b"\r\n")
    assert answer.status == 200
    assert answer.json["items"]


@pytest.mark.parametrize(
    "kind",
    [b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x",
     b";", b"\xff", b"json"],
)  # fmt: skip
def test_a_body_of_another_type_is_a_415(
    api: Service, bodies: list[tuple[bytes, bytes, bytes]], kind: bytes
) -> None:
    """Also when its bytes would be JSON."""
    for method, path, _ in bodies:
        header = b"Content-Type: %b\r\n" % kind if kind else b""
        answer = ask(api, method, path, header, b"{}")
        assert answer.status == 415
        require_problem(answer)


CHUNKS = {
    "no size": b"zz\r\n",
    "negative size": b"-1\r\nabc\r\n0\r\n\r\n",
    "no JSON": b"3\r\nabc\r\n0\r\n\r\n",
    "nothing": b"0\r\n\r\n",
    "wrong end": b"2\r\n{}}}0\r\n\r\n",
}


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_bad_chunks_are_refused(api: Service, chunks: bytes) -> None:
    """Whether they cannot be put together, or make no body."""
    head = b"POST /agents HTTP/1.1\r\nHost: x\r\n%bTransfer-Encoding: chunked\r\n\r\n" % JSON
    require_problem(send(api, head + chunks))


@pytest.mark.parametrize(
    "accept",
    [b"text/html", b"application/json;q=0", b"image/*, a/b", b"application/json;charset=x;q=0"],
)
def test_who_takes_no_json_gets_a_406(api: Service, accept: bytes) -> None:
    """Before anything is done."""
    header = b"Accept: %b\r\n" % accept
    for method, path in ((b"GET", b"/agents"), (b"POST", b"/agents"), (b"GET", b"/healthz")):
        answer = ask(api, method, path, header + JSON, b'{"name":"never"}')
        assert answer.status == 406
        require_problem(answer)
    assert ask(api, b"GET", b"/agents?name=never").json["items"] == []


@pytest.mark.parametrize(
    "accept",
    [b"", b"*/*", b"application/*", b"application/problem+json", b"text/html, */*;q=0.1",
     b"application/json;q=0.1", b"application/json; charset=utf-8",
     b"application/json;charset=utf-8;q=0.5, text/html"],
)  # fmt: skip
def test_who_takes_json_among_others_gets_it(api: Service, accept: bytes) -> None:
    """A browser too."""
    assert ask(api, b"GET", b"/healthz", b"Accept: %b\r\n" % accept).status == 200


@pytest.mark.parametrize("method", [b"TRACE", b"POST", b"CONNECT", b"QUERY"])
def test_another_method_is_a_405_that_names_those_there_are(api: Service, method: bytes) -> None:
    """As RFC 9110 asks."""
    answer = ask(api, method, b"/agents/1", JSON, b"{}")
    assert answer.status == 405
    require_problem(answer)
    allowed = set(answer.headers["Allow"].replace(" ", "").split(","))
    assert allowed == {"GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"}


def test_options_names_the_methods(api: Service) -> None:
    """For a path that is there; for another one it is a 404."""
    answer = ask(api, b"OPTIONS", b"/agents")
    assert answer.status == 200
    assert set(answer.headers["Allow"].split(", ")) == {"GET", "HEAD", "OPTIONS", "POST", "DELETE"}
    require_problem(ask(api, b"OPTIONS", b"/nowhere"))


def test_head_is_get_without_the_body(api: Service) -> None:
    """With the same headers, for what is there and for what is not."""
    [agent] = api.get("/agents?limit=1").json["items"]
    path = f"/agents/{agent['id']}".encode()
    got, head = ask(api, b"GET", path), ask(api, b"HEAD", path)
    assert (head.status, head.body) == (200, b"")
    for name in ("Content-Type", "Content-Length", "ETag"):
        assert head.headers[name] == got.headers[name]
    missing = ask(api, b"HEAD", b"/agents/0")
    assert (missing.status, missing.body) == (404, b"")
    assert missing.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("path", "patch", "pointer"),
    [("/agents", {"colour": None}, "/colour"), ("/products", {"price": {"x": None}}, "/price/x")],
    ids=["a field", "a field of an object"],
)
def test_a_patch_of_what_is_not_there_is_refused(
    api: Service, path: str, patch: dict[str, Any], pointer: str
) -> None:
    """Though it is null, which would remove it: a name that was mistyped is not done."""
    [item] = api.get(f"{path}?limit=1").json["items"]
    answer = api.ask("PATCH", f"{path}/{item['id']}", patch)
    assert answer.status == 422
    assert [fault["pointer"] for fault in answer.json["errors"]] == [pointer]


def test_a_second_that_no_database_has_is_refused(api: Service) -> None:
    """After the last one of a minute."""
    key = {"name": "never", "scopes": ["read"], "expires_at": "2030-06-30T23:59:60Z"}
    for path, body in (("/keys", key), ("/keys/batch", {"items": [key]})):
        require_problem(api.ask("POST", path, body))


@pytest.mark.parametrize(
    ("time", "kept"),
    [
        ("2030-01-01T00:00:00+16:00", "2029-12-31T08:00:00.000000Z"),
        ("2030-01-01T00:00:00-23:59", "2030-01-01T23:59:00.000000Z"),
        ("0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00.000000Z"),
        ("9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_a_time_of_any_zone_is_kept_in_utc(api: Service, time: str, kept: str) -> None:
    """Also of those that Postgres has not, and where UTC has no such year."""
    made = api.ask("POST", "/keys", {"name": f"until {time}", "scopes": ["read"]})
    path, patch = made.headers["Location"], {"expires_at": time}
    changed = api.ask("PATCH", path, patch)
    assert (changed.status, changed.json["expires_at"]) == (200, kept)
    body = {"name": f"from {time}", "scopes": ["read"], "expires_at": time}
    again = api.ask("POST", "/keys", body)
    assert (again.status, again.json["expires_at"]) == (201, kept)


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match"])
def test_a_condition_where_it_would_mean_nothing_is_refused(api: Service, header: str) -> None:
    """Of many items there is no version: nothing is done as if it had been fulfilled."""
    agent = api.ask("POST", "/agents", {"name": f"conditional {header}"}).json
    item, condition = agent["id"], {header: '"7"'}
    for method, path, body in (
        ("PATCH", "/agents/batch", {"items": [{"id": item, "patch": {"name": "changed"}}]}),
        ("DELETE", "/agents/batch", {"ids": [item]}),
        ("DELETE", f"/agents?name=conditional%20{header}", None),
    ):
        answer = api.ask(method, path, body, condition)
        assert answer.status == 422
        require_problem(answer)
    assert api.get(f"/agents/{item}").json == agent
    assert api.ask("DELETE", f"/agents/{item}").status == 204


@pytest.mark.parametrize(("tag", "status"), [("*", 412), ('"1"', 422)])
def test_what_is_there_is_not_changed_by_who_wants_nothing_to_be(
    api: Service, tag: str, status: int
) -> None:
    """If-None-Match: * on what is there is a 412 (RFC 9110); a tag in it is for GET."""
    agent = api.ask("POST", "/agents", {"name": f"is there {status}"}).json
    path = f"/agents/{agent['id']}"
    for method, body in (("PUT", {"name": "changed"}), ("PATCH", {}), ("DELETE", None)):
        assert api.ask(method, path, body, {"If-None-Match": tag}).status == status
    assert api.get(path).json == agent
    assert api.ask("DELETE", path).status == 204

"""wire: what is ordinary, and what is not."""

from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http.wsgi import base_environ

from greenline.http import fast_parser
from greenline.http.fast_parser import CHUNKED, Fallback, FastParser, Rules

HOST = b"Host: example.org\r\n"


def parser(**settings: Any) -> FastParser:
    """Return the fast parser of a client on the loopback."""
    cfg = Config()
    for name, value in settings.items():
        cfg.set(name, value)
    return FastParser(Rules(cfg), base_environ(cfg), ("127.0.0.1", 4711), ("127.0.0.1", 8000))


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET / HTTP/1.1\r\n" + HOST, id="plain"),
        pytest.param(b"GET /a/b%20c?d=e&f HTTP/1.1\r\n" + HOST, id="query"),
        pytest.param(b"GET //a HTTP/1.1\r\n" + HOST, id="two slashes"),
        pytest.param(b"HEAD / HTTP/1.0\r\n", id="HTTP/1.0"),
        pytest.param(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n", id="length"),
        pytest.param(
            b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: Chunked\r\n", id="chunked"
        ),
        pytest.param(b"GET / HTTP/1.1\r\n" + HOST + b"Cookie: a\r\nCookie: b\r\n", id="repeated"),
        pytest.param(
            b"GET / HTTP/1.1\r\n" + HOST + b"X-Forwarded-Proto: https\r\n", id="behind a proxy"
        ),
        pytest.param(b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n", id="close"),
        pytest.param(b"GET / HTTP/1.1\r\n" + HOST + b"A:  \xe9 \r\n", id="latin-1"),
    ],
)
def test_the_ordinary_takes_the_fast_parser(head: bytes) -> None:
    """What browsers, proxies and programs send is read here."""
    assert parser().read(head + b"\r\n").head_bytes == len(head) + 2


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\n", id="expect"),
        pytest.param(b"GET / HTTP/1.1\r\nA_B: c\r\n", id="underscore"),
        pytest.param(b"GET / HTTP/1.1\r\nA: b\r\n c\r\n", id="folded"),
        pytest.param(b"GET / HTTP/1.1\nHost: a\r\n", id="bare LF"),
        pytest.param(b"\r\nGET / HTTP/1.1\r\n", id="a blank line before"),
        pytest.param(b"GET  / HTTP/1.1\r\n", id="two blanks"),
        pytest.param(b"TRACE / HTTP/1.1\r\n", id="method"),
        pytest.param(b"OPTIONS * HTTP/1.1\r\n", id="asterisk"),
        pytest.param(b"GET http://a/ HTTP/1.1\r\n", id="absolute"),
        pytest.param(b"GET /\xe9 HTTP/1.1\r\n", id="not ASCII"),
        pytest.param(b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n", id="coding"),
        pytest.param(
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n", id="both"
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nConnection: close\r\nConnection: keep-alive\r\n", id="two words"
        ),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + b"b" * 8_190 + b"\r\n", id="long"),
    ],
)
def test_the_unusual_does_not(head: bytes) -> None:
    """What gunicorn refuses, or what takes more than a glance, is left to it."""
    with pytest.raises(Fallback):
        parser().read(head + b"\r\n")


@pytest.mark.parametrize("cut", [1, 10, 16, 25, 36])
def test_a_part_of_a_head_is_unusual(cut: int) -> None:
    """gunicorn's parser reads on, and refuses early what it can."""
    head = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
    assert parser().read(head).method == "GET"
    with pytest.raises(Fallback):
        parser().read(head[:cut])


def test_a_request_knows_what_hooks_and_logs_ask_for() -> None:
    """Its attributes are those of gunicorn's own."""
    request = parser().read(b"POST /a%20b?c HTTP/1.1\r\nhost: h\r\nCONTENT-LENGTH: 3\r\n\r\nabc")
    assert (request.method, request.uri, request.path) == ("POST", "/a%20b?c", "/a%20b")
    assert (request.query, request.fragment, request.version) == ("c", "", (1, 1))
    assert request.headers == [("HOST", "h"), ("CONTENT-LENGTH", "3")]
    assert (request.length, request.scheme, request.trailers) == (3, "http", [])
    assert request.remote_addr == request.peer_addr == ("127.0.0.1", 4711)
    assert not request.should_close()
    request.force_close()
    assert request.should_close()


def test_a_chunked_body_has_no_length() -> None:
    """Its end is found by reading it."""
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert parser().read(head).length == CHUNKED


def test_environs_share_nothing() -> None:
    """An application may change its environ; the next request does not see that."""
    reader = parser()
    head = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
    first = reader.read(head).environ
    first["SERVER_NAME"] = first["mine"] = "changed"
    second = reader.read(head).environ
    assert second["SERVER_NAME"] == "127.0.0.1"
    assert "mine" not in second


def test_what_is_remembered_is_bounded() -> None:
    """Names and targets of a client's invention do not fill the memory."""
    reader = parser()
    for number in range(3 * fast_parser.MAX_REMEMBERED_TARGETS):
        reader.read(b"GET /%d HTTP/1.1\r\nHost: a\r\nN%d: a\r\n\r\n" % (number, number))
    assert fast_parser.key_of.cache_info().currsize <= fast_parser.MAX_REMEMBERED_TARGETS
    assert reader.rules._split_short.cache_info().currsize <= fast_parser.MAX_REMEMBERED_TARGETS

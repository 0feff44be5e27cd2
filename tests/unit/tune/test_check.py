"""What a server is asked for before a load, and what is left of the load."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep

import pytest

from greenline.errors import ConfigError
from greenline.tune import check as checking
from greenline.tune.check import check
from greenline.tune.load import Load, Request

FAST = 1e6


class Service(ThreadingHTTPServer):
    """Answers a path such as /500 with that status, and each other one with 200."""

    daemon_threads = True
    paths: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Service

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.server.paths.append(self.path + body)
        if self.path == "/late":
            sleep(60)
        number = self.path.strip("/").partition("?")[0]
        self.send_response(int(number) if number.isdigit() else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(("127.0.0.1", 0), Handler) as found:
        found.paths = []
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        yield found
        found.shutdown()


def load(*targets: str) -> Load:
    return Load([Request("GET", target) for target in targets], "access.log")


def test_what_was_not_asked_for_is_offered(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what was asked for and failed is left out, and the words are of what is left."""
    monkeypatch.setattr(checking, "MAX_ASKED", 2)
    found = check(service.url, load("/a", "/a", "/a", "/404", "/404", "/b", "/c"), {}, FAST)
    assert [each.target for each in found.load.requests] == ["/a", "/a", "/a", "/b", "/c"]
    assert found.load.words == "5 GET of 3 URLs of access.log"
    assert found.warnings == ["GET /404 is not offered: it is answered with 404"]
    assert service.paths == ["/a", "/a", "/404"]


def test_most_requests_have_to_be_answered(service: Service) -> None:
    """A URL counts as often as it is in the load."""
    assert check(
        service.url, load("/a", "/a", "/a", "/404", "/500"), {}, FAST
    ).load.words.startswith("3")
    with pytest.raises(ConfigError, match="GET /404 is answered with 404"):
        check(service.url, load("/404", "/404", "/404", "/a", "/b"), {}, FAST)


def test_a_broken_service_is_spared(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than the highest rate, and no more than ten URLs if most of them fail."""
    slept_s: list[float] = []
    monkeypatch.setattr(checking, "sleep", slept_s.append)
    with pytest.raises(ConfigError, match="it fails without any load"):
        check(service.url, load(*(f"/500?{number}" for number in range(50))), {}, 0.1)
    assert len(service.paths) == 1 + 10
    assert len(slept_s) == 1 + 10
    assert all(5.0 < each <= 10.0 for each in slept_s)


def test_a_url_without_an_answer_is_left_out(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, and the others are asked for."""
    monkeypatch.setattr(checking, "TIMEOUT_S", 1.0)
    found = check(service.url, load("/a", "/late", "/b"), {}, FAST)
    assert [each.target for each in found.load.requests] == ["/a", "/b"]
    assert found.warnings == ["GET /late is not offered: it has no answer within 1 s"]


def test_letters_beyond_latin_1_are_sent(service: Service) -> None:
    """In a body and in a header of a HAR file, as UTF-8."""
    request = Request("GET", "/", {"X-Name": "\N{SNOWMAN}"}, "\N{SNOWMAN}")
    assert check(service.url, Load([request]), {}, FAST).load.requests == [request]
    assert service.paths == ["/\N{SNOWMAN}"] * 2

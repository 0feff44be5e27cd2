"""deploy/nginx.conf: what it passes on, what it answers itself, and what it leaves alone."""

import gzip
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from gevent.server import StreamServer

from tests.deploy.behind import Behind, behind
from tests.deploy.traffic import KINDS, deployed
from tests.helpers.support import Answer, Databases, Service, free_port, wait_until

LOGS_JSON = {"GREENLINE_ACCESS_LOG": "json", "CORS_ORIGINS": "*"}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, databases: Databases) -> Iterator[tuple[Behind, Service]]:
    """The service, and nginx before it."""
    with deployed(request.param, databases, environ=LOGS_JSON) as both:
        yield both.front, both.running


def ask(front: Behind, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """Ask through nginx."""
    asked = Service(process=None, port=front.port, log_file=Path())  # type: ignore[arg-type]
    return asked.ask(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})


def test_what_the_service_answers_comes_through(pair: tuple[Behind, Service]) -> None:
    """A book and a problem document."""
    front, _ = pair
    assert ask(front, "GET", "/books/1").json["id"] == 1
    missing = ask(front, "GET", "/books/999999999")
    assert missing.status == 404
    assert missing.headers["Content-Type"] == "application/problem+json"


def test_both_logs_know_the_request_by_one_id(pair: tuple[Behind, Service]) -> None:
    """nginx's own id, whatever the client calls it; the client's address; the time in the queue."""
    front, running = pair
    answer = ask(front, "GET", "/genres/1", X_Request_Id="mine", X_Forwarded_For="203.0.113.9")
    mine = answer.headers["X-Request-Id"]
    assert mine != "mine"
    (entry,) = wait_until(
        lambda: [each for each in front.entries() if each["request_id"] == mine], "nginx's line"
    )
    assert (entry["status"], entry["client"]) == (200, "127.0.0.1")
    line = wait_until(
        lambda: [line for line in running.log.splitlines() if mine in line], "the service's line"
    )[0]
    assert '"client":"127.0.0.1"' in line
    assert '"proxy_ms":null' not in line


def test_a_version_of_a_compressed_answer_is_good_for_a_change(
    pair: tuple[Behind, Service],
) -> None:
    """nginx weakens the tag of what it compresses."""
    front, _ = pair
    name = "a" * 4000
    made = ask(front, "POST", "/states", {"task_id": 3, "agent_id": 77, "data": {"note": name}})
    path = made.headers["Location"]
    got = ask(front, "GET", path, Accept_Encoding="gzip")
    assert got.headers["Content-Encoding"] == "gzip"
    assert name in gzip.decompress(got.body).decode()
    assert got.headers["ETag"].startswith("W/")
    again = ask(front, "GET", path, Accept_Encoding="gzip", If_None_Match=got.headers["ETag"])
    assert again.status == 304
    patch = {"data": {"note": "b"}}
    changed = ask(front, "PATCH", path, patch, If_Match=got.headers["ETag"])
    assert changed.status == 200
    late = ask(front, "PATCH", path, patch, If_Match=got.headers["ETag"])
    assert late.status == 412
    assert ask(front, "DELETE", path).status == 204


def test_maintenance_is_a_file(pair: tuple[Behind, Service]) -> None:
    """While it is there every request gets 503; then the service is there at once."""
    front, _ = pair
    front.maintenance.touch()
    received = ask(front, "GET", "/books/1")
    front.maintenance.unlink()
    assert (received.status, received.headers["Retry-After"]) == (503, "60")
    assert (received.json["status"], received.json["code"]) == (503, "maintenance")
    assert ask(front, "GET", "/books/1").status == 200


def test_what_nginx_itself_refuses_is_a_problem_document(pair: tuple[Behind, Service]) -> None:
    """A body that is too large never reaches the service."""
    front, _ = pair
    received = ask(front, "POST", "/states", b"x" * (2 * 1024 * 1024))
    assert received.status == 413
    assert received.headers["Content-Type"] == "application/problem+json"
    assert received.json["status"] == 413


def test_a_service_that_is_not_there_is_a_502_in_the_same_form() -> None:
    """No process listens on the port."""
    with behind(ports=[free_port()]) as front:
        received = ask(front, "GET", "/books/1")
    assert received.status == 502
    assert (received.json["status"], received.json["title"]) == (502, "Bad Gateway")


HOSTS = {
    "origin form": (b"GET / HTTP/1.1\r\nHost: Good.example:81\r\n", b"good.example"),
    "absolute form": (
        b"GET http://good.example/ HTTP/1.1\r\nHost: malformed.example\r\n", b"good.example",
    ),
    "none": (b"GET / HTTP/1.0\r\n", b"greenline.example"),
}  # fmt: skip


@pytest.mark.parametrize(("said", "expected"), HOSTS.values(), ids=HOSTS)
def test_the_host_is_the_one_that_nginx_went_by(said: bytes, expected: bytes) -> None:
    """Not what else a client says; nor is any other header about the host the client's."""
    received, port = passed_on(said, {})
    assert (received[b"Host"], received[b"X-Forwarded-Host"]) == (expected, expected)
    assert received[b"X-Forwarded-Port"] == b"%d" % port


def test_http_host_is_another_name_than_the_server_s() -> None:
    """Which is why check-deploy reports it (client-host)."""
    changes = {"proxy_set_header Host $host;": "proxy_set_header Host $http_host;"}
    received, _ = passed_on(HOSTS["absolute form"][0], changes)
    assert received[b"Host"] == b"malformed.example"


def passed_on(said: bytes, changes: Mapping[str, str]) -> tuple[dict[bytes, bytes], int]:
    """Return the headers that nginx passes on of a request, and nginx's port."""
    heads: list[bytes] = []

    def answer(client: socket.socket, _: object) -> None:
        heads.append(client.recv(65_536))
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with StreamServer(("127.0.0.1", 0), answer) as upstream, socket.socket() as client:
        upstream.start()
        with behind(ports=[upstream.server_port], changes=changes) as front:
            client.connect(front.address)
            more = b"X-Forwarded-Host: bad.example\r\nX-Forwarded-Port: 9\r\n"
            client.sendall(said + more + b"Connection: close\r\n\r\n")
            assert client.recv(65_536).startswith(b"HTTP/1.1 200 ")
    return dict(line.split(b": ", 1) for line in heads[0].split(b"\r\n")[1:] if line), front.port

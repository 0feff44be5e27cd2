"""greenline.http.response with a client that takes everything."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gunicorn.config import Config

from greenline.http.response import Response

MAX_PARTS = 1_000_000


class Taker:
    """A client's connection that keeps what it is sent."""

    error = None

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.sendall: Any = self.parts.append


@pytest.fixture
def taker() -> Taker:
    return Taker()


@pytest.fixture
def response(taker: Taker) -> Response:
    request = SimpleNamespace(
        method="GET", version=(1, 1), path="/", should_close=lambda: False, headers=[]
    )
    response = Response(request, taker, Config())
    response.start_response("200 OK", [("Content-Type", "text/plain")])
    return response


def test_each_part_is_sent_before_the_next_is_asked_for(response: Response, taker: Taker) -> None:
    """PEP 3333: a part must not be delayed."""
    seen = []

    def parts() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x"
            seen.append(len(taker.parts))

    response.write_all(parts())
    assert seen == [*range(1, 21)]
    assert taker.parts[-1] == b"0\r\n\r\n"


def test_a_body_of_many_parts_lets_others_run(response: Response, taker: Taker) -> None:
    """Its parts come without a wait, and end only when another greenlet has run thrice."""
    others: list[int] = []

    def other() -> None:
        for _ in range(3):
            gevent.sleep(0.001)
        others.append(len(taker.parts))

    gevent.spawn(other)

    def parts() -> Iterator[bytes]:
        while not others and len(taker.parts) < MAX_PARTS:
            yield b"x"

    response.write_all(parts())
    assert 0 < others[0] < MAX_PARTS

"""greenline.http.response with a client that takes everything."""

import bz2
import gzip
import lzma
import os
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gunicorn.config import Config
from gunicorn.http.wsgi import FileWrapper

from greenline.http import response as response_module
from greenline.http.response import Response

MAX_PARTS = 1_000_000


class Taker:
    """A client's connection that keeps what it is sent."""

    error = None

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.sendall: Any = self.parts.append

    def sendfile(self, file: Any, offset: int, count: int) -> None:
        self.parts.append(os.pread(file.fileno(), count, offset))


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


class Wrapped:
    """A file that forwards to another one, as Django's File does."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.fileno, self.read = file.fileno, file.read


@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "wrapped"])
@pytest.mark.parametrize(
    "module", [pytest.param(module, id=module.__name__) for module in (bz2, gzip, lzma)]
)
def test_a_compressed_file_is_sent_as_it_reads(
    response: Response, taker: Taker, tmp_path: Path, module: Any, wrapped: bool
) -> None:
    """Its descriptor is that of the compressed file: sendfile() would send that."""
    path = tmp_path / "compressed"
    with module.open(path, "wb") as file:
        file.write(b"page" * 1_000)
    with module.open(path) as file:
        response.write_file(FileWrapper(Wrapped(file) if wrapped else file))
    response.close()
    assert b"".join(taker.parts).endswith(b"FA0\r\n" + b"page" * 1_000 + b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("buffering", [-1, 0], ids=["buffered", "raw"])
def test_a_file_is_sent_by_sendfile(response: Response, taker: Taker, buffering: int) -> None:
    """It is not read, neither by itself nor as the file of tempfile's wrapper."""
    with tempfile.NamedTemporaryFile(buffering=buffering) as file:
        file.write(b"page")
        file.seek(0)
        for each in (file, file.file):
            taker.parts.clear()
            each.read = None
            response.write_file(FileWrapper(each))
            assert taker.parts[-2:] == [b"page", b"\r\n"]


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


@pytest.mark.parametrize(
    ("others_s", "bodies_s", "slice_s"),
    [
        pytest.param(0.0, 0.0, response_module.SLICE_S, id="alone"),
        pytest.param(0.016, 0.0, 0.001, id="pages that compute"),
        pytest.param(1.0, 0.0, response_module.MAX_SLICE_S, id="one that blocks the hub"),
        pytest.param(0.016, 0.016, response_module.SLICE_S, id="other bodies"),
    ],
)
def test_a_body_has_its_share(
    monkeypatch: pytest.MonkeyPatch, others_s: float, bodies_s: float, slice_s: float
) -> None:
    """What others have in a round, but not other bodies, is time that this one has a share of."""
    now_s, yields_s = 1.0, []

    def yield_to_hub() -> None:
        nonlocal now_s
        yields_s.append(now_s)
        now_s += others_s
        response_module._written_s += bodies_s

    def parts() -> Iterator[bytes]:
        nonlocal now_s
        for _ in range(1000):
            now_s += 0.0001
            yield b"x"

    monkeypatch.setattr(response_module, "_written_s", 0.0)
    monkeypatch.setattr(response_module, "monotonic", lambda: now_s)
    monkeypatch.setattr(response_module, "yield_to_hub", yield_to_hub)
    response_module.write_parts(len, parts())
    ran_s = [later - before - others_s for before, later in pairwise(yields_s)]
    assert ran_s
    assert ran_s == pytest.approx([slice_s] * len(ran_s), abs=0.00011)

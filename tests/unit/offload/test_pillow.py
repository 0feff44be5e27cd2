"""Pillow computes in native threads; its files are read and written by the greenlet."""

import logging
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from io import BytesIO
from typing import Any

import gevent
import pytest
from gevent.monkey import get_original
from PIL import Image, ImageFilter
from PIL.PngImagePlugin import PngInfo

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.offload import threads

get_ident = get_original("_thread", "get_ident")
SIDE = 800


@pytest.fixture(scope="module")
def image() -> Image.Image:
    """An image that takes some time."""
    return Image.radial_gradient("L").resize((SIDE, SIDE)).convert("RGB")


def encoded(image: Image.Image, kind: str) -> bytes:
    """Return *image* as a file."""
    written = BytesIO()
    image.save(written, kind)
    return written.getvalue()


WORK: dict[str, Callable[[Image.Image], object]] = {
    "encode": lambda image: image.save(BytesIO(), "PNG", compress_level=9),
    "WebP": lambda image: image.save(BytesIO(), "WEBP"),
    "filter": lambda image: image.filter(ImageFilter.GaussianBlur(20)),
    "resize": lambda image: image.resize((SIDE * 2, SIDE * 2), Image.Resampling.LANCZOS),
    "quantize": lambda image: image.quantize(64),
    "AVIF": lambda image: image.save(BytesIO(), "AVIF"),
    "animation": lambda image: image.save(
        BytesIO(), "WEBP", save_all=True, append_images=[image.rotate(9)]
    ),
    "a large result": lambda image: image.resize((9, 9)).resize((4000, 4000)),
}


@pytest.mark.parametrize("name", WORK)
def test_others_run_meanwhile(image: Image.Image, name: str) -> None:
    """As under gthread."""
    working = gevent.spawn(WORK[name], image)
    looks = 0
    while not working.ready():
        gevent.sleep(0)
        looks += 1
    working.get()
    assert looks > 100


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF"])
def test_a_file_is_read_and_written_by_its_greenlet(image: Image.Image, kind: str) -> None:
    """It may be a socket, which only its own thread may wait for."""
    idents = set()

    class File(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            idents.add(get_ident())
            return super().read(size)

        def write(self, data: Any, /) -> int:
            idents.add(get_ident())
            return super().write(data)

    written = File()
    image.save(written, kind)
    with Image.open(File(written.getvalue())) as read:
        assert read.resize((10, 10)).convert("RGB").getpixel((5, 5)) is not None
    assert idents == {get_ident()}


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_image_is_sent_to_a_socket(image: Image.Image, kind: str) -> None:
    """By its makefile(), which is of the class of a file."""
    ours, its = socket.socketpair()

    def receive() -> bytes:
        with its, its.makefile("rb") as file:
            return file.read()

    receiving = gevent.spawn(receive)
    with ours, ours.makefile("wb") as file:
        image.save(file, kind)
    assert receiving.get(timeout=20) == encoded(image, kind)


def test_a_deadline_waits_for_the_code_in_c(image: Image.Image) -> None:
    """What it uses is freed when it has ended, and not under it."""

    class File(BytesIO):
        """Of an application."""

    written = BytesIO()
    image.resize((4000, 4000)).save(written, "JPEG", progressive=True)
    ended = []
    for number in range(8):
        with (
            suppress(DeadlineExceeded),
            deadline.limit(0.01 * number),
            Image.open(File(written.getvalue())) as opened,
        ):
            opened.load()
            ended.append(opened)
    assert len(ended) < 8


def test_code_of_the_application_stays_in_its_greenlet(
    image: Image.Image, caplog: pytest.LogCaptureFixture
) -> None:
    """A filter, and what handles the lines of Pillow's log: their locks are the hub's."""
    idents = set()

    class Mine(ImageFilter.MultibandFilter):
        def filter(self, image: Any) -> Any:
            idents.add(get_ident())
            return image

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            idents.add(get_ident())

    image.filter(Mine())
    info = PngInfo()
    info.add(b"tEXt", b"a\0b", True)
    written, handler = BytesIO(), Handler()
    image.save(written, "PNG", pnginfo=info)
    log = logging.getLogger("PIL")
    log.addHandler(handler)
    try:
        with caplog.at_level(logging.DEBUG, "PIL"), Image.open(BytesIO(written.getvalue())) as read:
            read.load()
    finally:
        log.removeHandler(handler)
    assert idents == {get_ident()}


def test_a_copy_of_an_image_file_is_an_image(image: Image.Image) -> None:
    """By pickle, from a cache for instance, or by copy: it has no file."""
    with Image.open(BytesIO(encoded(image, "JPEG"))) as opened:
        for made in (pickle.loads(pickle.dumps(opened)), deepcopy(opened)):  # noqa: S301
            assert made.resize((10, 10)).tobytes() == opened.resize((10, 10)).tobytes()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "PPM"])
def test_an_image_is_written_to_a_program(image: Image.Image, kind: str) -> None:
    """Whose pipe is not blocking."""
    command = [sys.executable, "-c", "import sys; print(len(sys.stdin.buffer.read()))"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None
        image.save(program.stdin, kind)
        assert int(program.communicate()[0]) == len(encoded(image, kind))


def test_a_small_image_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand-over would take longer than the work."""

    def compute(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(threads, "_hand_over", compute)
    image = Image.new("RGB", (100, 100)).resize((50, 50)).convert("L")
    for kind in ("JPEG", "PNG", "GIF"):
        with Image.open(BytesIO(encoded(image, kind))) as read:
            assert read.getpixel((5, 5)) == 0
    with pytest.raises(AssertionError):
        Image.new("RGB", (1000, 100)).resize((50, 50))


def test_the_results_are_those_of_pillow(image: Image.Image) -> None:
    """In a native thread Pillow itself computes."""

    def results() -> list[bytes]:
        with Image.open(BytesIO(encoded(image, "JPEG"))) as opened:
            small = opened.resize((300, 200), reducing_gap=2.0).convert("L")
        with Image.open(BytesIO(encoded(image, "PNG"))) as opened:
            opened.thumbnail((200, 200))
        made = [small, opened, image.crop((10, 10, 900, 900)).rotate(33), image.reduce(3)]
        return [each.tobytes() for each in made] + [encoded(each, "PNG") for each in made]

    assert results() == threads.run(results)


def test_errors_are_those_of_pillow(image: Image.Image) -> None:
    """Of a file that ends too early, and of wrong arguments."""
    with (
        Image.open(BytesIO(encoded(image, "JPEG")[:2000])) as opened,
        pytest.raises(OSError, match="truncated"),
    ):
        opened.load()
    with pytest.raises(ValueError, match="resampling filter"):
        image.resize((10, 10), 99)

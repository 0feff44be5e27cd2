"""
Read request bodies on demand with gunicorn's readers, and limit their size.

A body with a Content-Length is refused before the application runs, a chunked one at the chunk that
exceeds the limit.
"""

from collections.abc import Callable, Iterator
from typing import Any

from greenline.http.gunicorn_compat import ChunkedReader, StrictChunkedReader
from greenline.hub.cooperate import yield_to_hub

READ_BYTES = 65_536
DRAIN_BYTES = 100 * 1024 * 1024
CHUNKS_AT_ONCE = 256  # about 1 ms of parsing


class BodyTooLarge(OSError):
    """
    The body is larger than GREENLINE_MAX_BODY_BYTES.

    :param limit_bytes: that limit, int.
    """

    def __init__(self, limit_bytes: float) -> None:
        super().__init__(f"the body is larger than {limit_bytes} bytes")


class BodyCut(OSError):
    """A deadline interrupted the reading of this body, so its position is unknown."""

    def __init__(self) -> None:
        super().__init__("the reading of the body was interrupted")


class BoundedChunks(StrictChunkedReader):  # type: ignore[misc]
    """
    A chunked body of a limited size.

    :param request: gunicorn's request, or one with the same attributes.
    :param unreader: gunicorn's buffer over the client.
    :param max_bytes: size of the decoded body, int; infinite: no limit.
    :param note: called with the error that is about to be raised, if the body is larger.
    """

    is_cut = False

    def __init__(
        self, request: Any, unreader: Any, max_bytes: float, note: Callable[[BodyTooLarge], object]
    ) -> None:
        self._max_bytes = max_bytes
        self._note = note
        super().__init__(request, unreader)

    def read(self, size: int) -> bytes:
        # The rest of a chunk must never be parsed as the next request.
        if self.is_cut:
            raise BodyCut
        try:
            data: bytes = super().read(size)
        except Exception:
            raise  # gunicorn's Body sets `failed`
        except BaseException:
            # A deadline or a kill. It has ended the generator that parses the chunks, which the
            # base class would take for the end of the body.
            self.is_cut = True
            raise
        return data

    def parse_chunked(self, unreader: Any) -> Iterator[bytes]:
        read = 0
        for number, part in enumerate(super().parse_chunked(unreader), 1):
            read += len(part)
            # Chunks that are in the buffer already are parsed without a switch of greenlets.
            if number % CHUNKS_AT_ONCE == 0:
                yield_to_hub()
            if read > self._max_bytes:
                # The application may turn this error into another one, and the answer must be a
                # 413 all the same.
                error = BodyTooLarge(self._max_bytes)
                self._note(error)
                raise error
            yield part


def is_unread(body: Any) -> bool:
    """Return whether the client may still be sending *body*."""
    reader = body.reader
    if isinstance(reader, ChunkedReader):
        return reader.parser is not None  # the reader drops it at the last chunk
    return bool(reader.length > 0)


def drain(body: Any) -> bool:
    """
    Read the rest of *body*; return whether the next request begins there.

    More than ``DRAIN_BYTES`` are not read: no application needs them any more.

    :raises ClientTimeout: the client did not send it in time.
    :raises BodyTooLarge: the rest exceeds the limit.
    """
    # After an error or an interrupt the position in the stream is unknown.
    if body.failed or getattr(body.reader, "is_cut", False):
        return False
    left = DRAIN_BYTES
    while left > 0:
        data = body.read(READ_BYTES)
        if not data:
            return True
        left -= len(data)
    return False

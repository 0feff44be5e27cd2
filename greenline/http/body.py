"""
A request's body as ``wsgi.input``, read when the application asks for it.

1. What has come as a whole is a BytesIO.
2. The rest is gunicorn's own reader, over a client that keeps the limits.
3. A body that is too large is refused before the application runs where its length is said, else
   at the part that goes beyond.
4. Behind an answer that lets another request follow, what is left of the body is read to its end:
   the client was promised that request. The limits of the body hold for that.
5. A chunked body whose reading a deadline cut is never read on: the rest of a chunk would pass for
   the next request.
6. Many small chunks are no reason to stop: the others run every ``CHUNKS_AT_ONCE``, a millisecond.
"""

from collections.abc import Iterator
from typing import Any

from greenline.http.gunicorn_compat import Body, ChunkedReader, LengthReader
from greenline.hub.cooperate import yield_to_hub

READ_BYTES = 65_536
CHUNKS_AT_ONCE = 256


class BodyTooLarge(OSError):
    """The body is larger than GREENLINE_MAX_BODY_BYTES."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the body is larger than {limit_bytes} bytes")


class BodyCut(OSError):
    """A deadline interrupted the reading of this body: where it goes on is not known."""

    def __init__(self) -> None:
        super().__init__("the reading of the body was interrupted")


class BoundedChunks(ChunkedReader):  # type: ignore[misc]
    """A chunked body of a bounded size."""

    is_cut = False

    def __init__(self, request: Any, unreader: Any, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        super().__init__(request, unreader)

    def read(self, size: int) -> bytes:
        if self.is_cut:
            raise BodyCut
        try:
            data: bytes = super().read(size)
        except Exception:
            raise
        except BaseException:
            # The parser ended with it, and would say that the body did.
            self.is_cut = True
            raise
        return data

    def parse_chunked(self, unreader: Any) -> Iterator[bytes]:
        read = 0
        for number, part in enumerate(super().parse_chunked(unreader), 1):
            read += len(part)
            if number % CHUNKS_AT_ONCE == 0:
                yield_to_hub()
            if read > self._max_bytes:
                unreader.sock.error = BodyTooLarge(self._max_bytes)
                raise unreader.sock.error
            yield part


def bounded(body: Any, request: Any, unreader: Any, max_bytes: int) -> Any:
    """
    Return gunicorn's *body* with a limit to its size.

    Raises:
        BodyTooLarge: the request says so itself.
    """
    reader = body.reader
    if isinstance(reader, ChunkedReader):
        return Body(BoundedChunks(request, unreader, max_bytes))
    if isinstance(reader, LengthReader) and reader.length > max_bytes:
        raise BodyTooLarge(max_bytes)
    return body


def is_unread(body: Any) -> bool:
    """Return whether the client may still be sending *body*."""
    reader = body.reader
    if isinstance(reader, ChunkedReader):
        return reader.parser is not None
    return bool(reader.length > 0)


def drain(body: Any) -> bool:
    """
    Read what is left of *body*; return whether the next request begins there.

    Raises:
        ClientTimeout: the client does not send it.
    """
    if body.failed or getattr(body.reader, "is_cut", False):
        return False
    while body.read(READ_BYTES):
        pass
    return True

"""
Let Pillow compute in native threads, in C code that lets other threads run Python meanwhile.

Images are read from files, and written to them, by the greenlet itself: a file may be a socket.
"""

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from greenline.offload import threads
from greenline.offload.imports import after_import

MIN_PIXELS = 20_000  # with fewer a thread is not worth it
METHODS = ("convert", "crop", "filter", "quantize", "reduce", "resize", "transform", "transpose")

Method = Callable[..., Any]


class _Coder:
    """A decoder or an encoder of Pillow."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def decode(self, data: bytes) -> Any:
        """Decode a part of a file."""
        if self._inner.pulls_fd:  # it reads the file itself
            return self._inner.decode(data)
        return threads.compute(self._inner.decode, data)

    def encode(self, size: int) -> Any:
        """Return the next part of a file."""
        return threads.compute(self._inner.encode, size)

    def encode_to_file(self, fd: int, size: int) -> Any:
        """Write to an open file."""
        return threads.compute(self._inner.encode_to_file, fd, size)


def patch() -> None:
    """Replace functions and methods of Pillow, right after its modules are imported."""
    after_import("PIL.Image", _patch_image)
    after_import("PIL.WebPImagePlugin", _patch_webp)


def _patch_image(module: ModuleType) -> None:
    image: Any = module
    for name in ("_getdecoder", "_getencoder"):
        setattr(image, name, _coding(getattr(image, name)))
    for name in METHODS:
        setattr(image.Image, name, _of_image(getattr(image.Image, name)))


def _patch_webp(module: ModuleType) -> None:
    plugin: Any = module
    webp: Any = getattr(plugin, "_webp", None)
    if hasattr(webp, "WebPEncode"):
        webp.WebPEncode = _in_thread(webp.WebPEncode)
    kind = plugin.WebPImageFile
    if hasattr(kind, "_get_next"):
        kind._get_next = _in_thread(kind._get_next)


def _coding(make: Method) -> Method:
    @wraps(make)
    def coder(*args: Any) -> Any:
        made = make(*args)
        # Not one that is written in Python, as those of some formats are.
        return _Coder(made) if type(made).__name__ in ("ImagingDecoder", "ImagingEncoder") else made

    return coder


def _of_image(method: Method) -> Method:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.width * self.height < MIN_PIXELS or not threads.can_wait():
            return method(self, *args, **kwargs)
        self.load()
        return threads.compute(method, self, *args, **kwargs)

    return call


def _in_thread(function: Method) -> Method:
    @wraps(function)
    def call(*args: Any) -> Any:
        return threads.compute(function, *args)

    return call

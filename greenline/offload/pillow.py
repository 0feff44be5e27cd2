"""
Let Pillow compute in native threads, in C code that lets other threads run Python meanwhile.

Where the file of an image may be a socket the greenlet itself reads and writes it, and each part is
computed apart.
"""

from collections.abc import Callable
from functools import wraps
from io import BufferedRandom, BufferedReader, BufferedWriter, BytesIO
from types import ModuleType
from typing import Any

from greenline.offload import threads
from greenline.offload.imports import after_import

MIN_PIXELS = 20_000  # with fewer a thread is not worth it
FILES = {BytesIO, BufferedRandom, BufferedReader, BufferedWriter}  # that wait for no client
METHODS = ("convert", "crop", "filter", "quantize", "reduce", "resize", "transform", "transpose")

Method = Callable[..., Any]


class _Coder:
    """A decoder or an encoder of Pillow."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._compute: Method = threads.compute

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def setimage(self, im: Any, *extents: Any) -> None:
        """Set what is decoded or encoded."""
        self._inner.setimage(im, *extents)
        if _is_small(im.size):
            self._compute = _call

    def decode(self, data: bytes) -> Any:
        """Decode a part of a file."""
        if self._inner.pulls_fd:  # it reads the file itself
            return self._inner.decode(data)
        return self._compute(self._inner.decode, data)

    def encode(self, size: int) -> Any:
        """Return the next part of a file."""
        return self._compute(self._inner.encode, size)

    def encode_to_file(self, fd: int, size: int) -> Any:
        """Write to an open file."""
        return self._compute(self._inner.encode_to_file, fd, size)


def patch() -> None:
    """Replace functions and methods of Pillow, right after its modules are imported."""
    after_import("PIL.Image", _patch_image)
    after_import("PIL.ImageFile", _patch_file)
    after_import("PIL.WebPImagePlugin", _patch_webp)


def _patch_image(module: ModuleType) -> None:
    image: Any = module
    for name in ("_getdecoder", "_getencoder"):
        setattr(image, name, _coding(getattr(image, name)))
    for name in METHODS:
        setattr(image.Image, name, _of_image(getattr(image.Image, name)))


def _patch_file(module: ModuleType) -> None:
    image_file: Any = module
    load, save = image_file.ImageFile.load, image_file._save

    @wraps(load)
    def load_in_thread(self: Any) -> Any:
        if type(self.fp) in FILES and self.tile and not _is_small(self.size):
            return threads.compute(load, self)
        return load(self)

    @wraps(save)
    def save_in_thread(im: Any, fp: Any, *args: Any, **kwargs: Any) -> Any:
        if type(fp) in FILES and not _is_small(im.size):
            im.load()
            return threads.compute(save, im, fp, *args, **kwargs)
        return save(im, fp, *args, **kwargs)

    image_file.ImageFile.load, image_file._save = load_in_thread, save_in_thread


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
        if _is_small(self.size) or not threads.can_wait():
            return method(self, *args, **kwargs)
        self.load()
        return threads.compute(method, self, *args, **kwargs)

    return call


def _in_thread(function: Method) -> Method:
    @wraps(function)
    def call(*args: Any) -> Any:
        return threads.compute(function, *args)

    return call


def _is_small(size: tuple[int, int]) -> bool:
    return size[0] * size[1] < MIN_PIXELS


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)

"""
Let Pillow compute in native threads, in C code that lets other threads run Python meanwhile.

Where the file of an image may be a socket the greenlet itself reads and writes it, and each part is
computed apart.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from io import BufferedRandom, BufferedReader, BufferedWriter, BytesIO, FileIO, UnsupportedOperation
from types import ModuleType
from typing import Any

from greenline.offload import threads
from greenline.offload.imports import after_import

MIN_PIXELS = 20_000  # with fewer a thread is not worth it
# By module in C, classes and their methods.
CODERS = {
    "_webp": {"WebPAnimDecoder": ("get_next",), "WebPAnimEncoder": ("add", "assemble")},
    "_avif": {"AvifDecoder": ("get_frame",), "AvifEncoder": ("add", "finish")},
}
BUFFERED = {BufferedRandom, BufferedReader, BufferedWriter}
METHODS = (
    "convert", "crop", "filter", "histogram", "quantize", "reduce", "resize", "split", "transform",
    "transpose",
)  # fmt: skip
NEAREST = 0  # Pillow's constant, of a filter that reads no more than it writes

# More than cores: a small image does not wait for the end of large ones. An image is left by its
# greenlet when the C code has left it.
_turns = threads.Turns(4, is_left=False)

Method = Callable[..., Any]


class _Coder:
    """A decoder or an encoder of Pillow."""

    def __init__(self, inner: Any, compute: Method) -> None:
        self._inner = inner
        self._compute = compute

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
        if not os.get_blocking(fd):
            raise UnsupportedOperation("a socket")  # Pillow calls encode() then
        return self._compute(self._inner.encode_to_file, fd, size)


class _InThread:
    """An object of C code, some of whose methods run in a native thread."""

    def __init__(self, inner: Any, methods: Collection[str]) -> None:
        self._inner = inner
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return _in_thread(found) if name in self._methods else found


def patch() -> None:
    """Replace functions and methods of Pillow, right after its modules are imported."""
    after_import("PIL.Image", _patch_image)
    after_import("PIL.ImageFile", _patch_file)
    after_import("PIL.ImageCms", _patch_cms)
    after_import("PIL._webp", _patch_coders)
    after_import("PIL._avif", _patch_coders)


def _patch_image(module: ModuleType) -> None:
    image: Any = module
    for name in ("_getdecoder", "_getencoder"):
        setattr(image, name, _coding(getattr(image, name)))
    for name in METHODS:
        setattr(image.Image, name, _of_image(getattr(image.Image, name)))


def _patch_file(module: ModuleType) -> None:
    image_file: Any = module
    load, save = image_file.ImageFile.load, image_file._save

    # What it does in Python is done in the thread as well, but for its lines in a log: the lock of
    # a log's handler is the hub's.
    log = logging.getLogger("PIL")

    @wraps(load)
    def load_in_thread(self: Any) -> Any:
        if (
            self.tile
            and _is_a_file(self.fp)
            and not _is_small(self.size)
            and not log.isEnabledFor(logging.DEBUG)
        ):
            return _turns.run(load, self)
        return load(self)

    @wraps(save)
    def save_in_thread(im: Any, fp: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_a_file(fp) and not _is_small(im.size) and not log.isEnabledFor(logging.DEBUG):
            im.load()
            return _turns.run(save, im, fp, *args, **kwargs)
        return save(im, fp, *args, **kwargs)

    image_file.ImageFile.load, image_file._save = load_in_thread, save_in_thread


def _patch_cms(module: ModuleType) -> None:
    kind: Any = module.ImageCmsTransform
    for name in ("apply", "apply_in_place"):
        setattr(kind, name, _transforming(getattr(kind, name)))


def _transforming(method: Method) -> Method:
    @wraps(method)
    def call(self: Any, im: Any, *args: Any) -> Any:
        im.load()
        return _turns.run(method, self, im, *args)

    return call


def _patch_coders(module: ModuleType) -> None:
    for name, methods in CODERS[module.__name__.rpartition(".")[2]].items():
        if hasattr(module, name):
            setattr(module, name, _making(getattr(module, name), methods))
    if hasattr(module, "WebPEncode"):
        module.WebPEncode = _in_thread(module.WebPEncode)  # type: ignore[attr-defined]


def _making(make: Method, methods: Collection[str]) -> Method:
    def coder(*args: Any) -> Any:
        return _InThread(make(*args), methods)

    return coder


def _coding(make: Method) -> Method:
    @wraps(make)
    def coder(*args: Any) -> Any:
        made = make(*args)
        if type(made).__name__ not in ("ImagingDecoder", "ImagingEncoder"):
            return made  # written in Python, as those of some formats are
        return _Coder(made, _call if args[1] == "raw" else _turns.run)  # "raw" only copies

    return coder


def _of_image(method: Method) -> Method:
    has_size = method.__name__ in ("resize", "transform")

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        size = kwargs.get("size", args[:1] and args[0]) if has_size else ()
        reads_little = has_size and kwargs.get("resample", (*args, None, None)[1]) == NEAREST
        is_large = not (_is_small(self.size) or reads_little) or _is_large(size)
        values = (self, *args, *kwargs.values())
        if not is_large or not threads.can_wait() or not _is_of_pillow(values):
            return method(self, *args, **kwargs)
        for each in values:
            if hasattr(each, "load"):  # an image, which may be read from a socket
                each.load()
        return _turns.run(method, self, *args, **kwargs)

    return call


def _is_of_pillow(values: Iterable[Any]) -> bool:
    """Return whether no code of the application is called, which belongs to its greenlet."""
    kinds = (each if isinstance(each, type) else type(each) for each in values)
    return all(kind.__module__.partition(".")[0] in ("PIL", "builtins") for kind in kinds)


def _in_thread(function: Method) -> Method:
    @wraps(function)
    def call(*args: Any) -> Any:
        return _turns.run(function, *args)

    return call


def _is_a_file(fp: Any) -> bool:
    """Return whether a thread may read and write *fp*: it is no socket, and no code of others."""
    return type(fp) is BytesIO or (type(fp) in BUFFERED and type(fp.raw) is FileIO)


def _is_small(size: tuple[int, int]) -> bool:
    return size[0] * size[1] < MIN_PIXELS


def _is_large(size: Any) -> bool:
    try:
        width, height = size
        return bool(width * height >= MIN_PIXELS)
    except (TypeError, ValueError):
        return False  # Pillow says what is wrong


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)

"""
Compress and decompress in native threads where much data is passed at once: C code does it, which
lets other threads run Python meanwhile, as under gthread.
"""

import copy
import zlib
from collections.abc import Callable
from functools import partial, update_wrapper
from types import ModuleType
from typing import Any, ClassVar

from greenline.offload.imports import after_import
from greenline.offload.threads import Turns

# A call with more takes some milliseconds.
MIN_BYTES = 200_000
MIN_BYTES_OF_SLOW = 20_000  # of brotli, bz2 and lzma

# More than cores: little data does not wait for the end of much. An object is left by its greenlet
# when the C code has left it, and no deadline ends what computes.
_turns = Turns(4, is_left=False, has_deadline=False)

Function = Callable[..., Any]


class _Coder:
    """An object that compresses or decompresses; its parameters are those of the original."""

    make: ClassVar[Function]
    min_bytes: ClassVar[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._inner = type(self).make(*args, **kwargs)
        self._has_much = False

    def __copy__(self) -> Any:
        other = object.__new__(type(self))
        other._inner, other._has_much = copy.copy(self._inner), self._has_much
        return other

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._inner.__reduce_ex__(protocol)  # raises TypeError

    def _run(self, function: Function, data: Any, *args: Any, **kwargs: Any) -> Any:
        is_much = _is_much(data, self.min_bytes)
        self._has_much |= is_much
        return _turns.run_if(is_much, function, data, *args, **kwargs)


class _Compressor(_Coder):
    def compress(self, data: Any, /) -> bytes:
        """Compress *data*, and return what is ready."""
        # In the fewest steps: a response of JSON in 24,000 parts costs each of them.
        if type(data) is bytes and len(data) < self.min_bytes:
            return self._inner.compress(data)  # type: ignore[no-any-return]
        return self._run(self._inner.compress, data)  # type: ignore[no-any-return]

    def flush(self, *args: Any) -> bytes:
        """Return the rest."""
        return _turns.run_if(self._has_much, self._inner.flush, *args)  # type: ignore[no-any-return]


class _Decompressor(_Coder):
    # Not of a compressor, which has only methods: each use of one would take twice as long.
    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def decompress(self, data: Any, /, *args: Any, **kwargs: Any) -> bytes:
        """Decompress *data*, and return what is ready."""
        if type(data) is bytes and len(data) < self.min_bytes:  # as in compress()
            return self._inner.decompress(data, *args, **kwargs)  # type: ignore[no-any-return]
        return self._run(self._inner.decompress, data, *args, **kwargs)  # type: ignore[no-any-return]


class _OfZlib(_Coder):
    def copy(self) -> Any:
        """Return a copy."""
        return self.__copy__()


def patch() -> None:
    """Replace functions and classes of zlib; those of other modules right after their import."""
    _replace_functions(zlib, MIN_BYTES)
    _replace(zlib, "compressobj", (_Compressor, _OfZlib), MIN_BYTES)
    _replace(zlib, "decompressobj", (_Decompressor, _OfZlib), MIN_BYTES)
    after_import("brotli", partial(_replace_functions, min_bytes=MIN_BYTES_OF_SLOW))
    for name in ("bz2", "lzma"):
        after_import(name, _replace_classes)


def _replace_functions(module: ModuleType, min_bytes: int) -> None:
    for name in ("compress", "decompress"):
        setattr(module, name, _in_a_thread(getattr(module, name), min_bytes))


def _replace_classes(module: ModuleType) -> None:
    # Their functions use these.
    prefix = module.__name__.upper()
    _replace(module, f"{prefix}Compressor", (_Compressor,), MIN_BYTES_OF_SLOW)
    _replace(module, f"{prefix}Decompressor", (_Decompressor,), MIN_BYTES_OF_SLOW)


def _replace(
    module: ModuleType, name: str, bases: tuple[type[_Coder], ...], min_bytes: int
) -> None:
    original = getattr(module, name)
    body = {
        "make": staticmethod(original),
        "min_bytes": min_bytes,
        "__doc__": original.__doc__,
        "__module__": module.__name__,
    }
    setattr(module, name, type(name, bases, body))


def _in_a_thread(original: Function, min_bytes: int) -> Function:
    def run(*args: Any, **kwargs: Any) -> Any:
        is_much = bool(args) and _is_much(args[0], min_bytes)
        return _turns.run_if(is_much, original, *args, **kwargs)

    return update_wrapper(run, original)


def _is_much(data: Any, min_bytes: int) -> bool:
    try:
        return memoryview(data).nbytes >= min_bytes
    except TypeError:
        return False  # the call says what is wrong

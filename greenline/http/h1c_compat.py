"""
gunicorn_h1c, the C extension that splits the heads of requests, checked once, at import.

Without it, or with one that splits a sample otherwise, gunicorn's Python parser reads every
request: ``split_head`` is None, and ``MISFIT`` says why.
"""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

H1C_SUPPORTED = ">=0.6.9,<0.7"
SAMPLE = b"POST /a?b HTTP/1.1\r\nHost: c\r\nA:  d \r\n\r\n"


def check(split: Callable[[bytes], Any]) -> None:
    """
    Prove that *split* gives what FastParser reads of a head.

    :param split: the function that splits the head at the beginning of some bytes.
    :raises AttributeError: the result lacks an attribute.
    :raises ValueError: the result, or what it does without a complete head, is another one.
    """
    head = split(SAMPLE + b"body")
    found = head.method, head.path, head.minor_version, head.consumed, tuple(head.headers)
    if found != (b"POST", b"/a?b", 1, len(SAMPLE), ((b"Host", b"c"), (b"A", b"d"))):
        raise ValueError(f"it splits a sample into {found}")
    for data in (SAMPLE[:-2], b"not HTTP\r\n\r\n"):
        # FastParser takes any result for a complete head.
        if not _raises(split, data):
            raise ValueError(f"it raises no error for {data!r}")


def _raises(split: Callable[[bytes], Any], data: bytes) -> bool:
    try:
        split(data)
    except Exception:
        return True
    return False


def _version() -> str:
    try:
        return version("gunicorn_h1c")
    except PackageNotFoundError:  # a module without a distribution
        return "of an unknown version"


split_head: Any = None
MISFIT = ""
try:
    import gunicorn_h1c

    check(gunicorn_h1c.parse_request_fast)
    split_head = gunicorn_h1c.parse_request_fast
except ImportError:
    MISFIT = "gunicorn_h1c is not installed"
except Exception as error:  # whatever it raises, the worker serves without it
    MISFIT = (
        f"gunicorn_h1c {_version()} is not supported ({error}): install gunicorn_h1c{H1C_SUPPORTED}"
    )

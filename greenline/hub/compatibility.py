"""
The table of libraries: which of them yield, and which block the hub or break.

``make compatibility`` writes it. The worker warns by it of what it has loaded, and the doctor
reports by it what an application depends on.
"""

from functools import cache
from pathlib import Path

import msgspec

YIELDS = "yields"
PATCHED_FIRST = "yields when patched first"
BLOCKS = "blocks the hub"
BREAKS = "breaks when interrupted"
NEEDS_ORDER = "needs an import order"
VERDICTS = (YIELDS, PATCHED_FIRST, NEEDS_ORDER, BREAKS, BLOCKS)

PATH = Path(__file__).parents[1] / "doctor" / "compatibility.json"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is known of one library.

    :param name: its distribution, or the module where it is part of Python or counts alone, str.
    :param modules: the modules that are imported of it.
    :param tried: whether it was tried under the worker, bool; if not, *source* says the verdict.
    :param version: the version that was tried, str; empty where *tried* is false.
    :param date: the day on which it was tried, ISO 8601, str; empty where *tried* is false.
    :param against: the server that it waited for, str; empty where *tried* is false.
    :param verdict: one of :data:`VERDICTS`.
    :param why: what was measured, str.
    :param source: the URL of its documentation or of an issue.
    :param instead: what to do, str; empty where nothing is to be done.
    :param extension: the C module that blocks where it is loaded. Default None.
    :param when: the dotted name without whose use the record does not count. Default None.
    :param without: modules of it that do not wait in C. Default: none.
    :param computes: whether it keeps the processor and does not wait, bool. Default False.
    :param before_patching: whether it needs to be imported before the worker is patched, by
        gunicorn.conf.py, bool. Default False.
    """

    name: str
    modules: tuple[str, ...]
    tried: bool
    version: str
    date: str
    against: str
    verdict: str
    why: str
    source: str
    instead: str
    extension: str | None = None
    when: str | None = None
    without: tuple[str, ...] = ()
    computes: bool = False
    before_patching: bool = False


@cache
def records(path: Path = PATH) -> tuple[Record, ...]:
    """
    Return the table.

    :param path: the file. Default: the one that is installed.
    """
    return msgspec.json.decode(path.read_bytes(), type=tuple[Record, ...])

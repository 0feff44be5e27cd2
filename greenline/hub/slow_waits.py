"""Add up what a request waits for, by statement, for the line of a slow request."""

import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from greenline.telemetry.access_log import printable

MAX_KINDS = 50  # of waits, of a request; the others are added up by what they wait for
MAX_SHOWN = 10
NOTED = "greenline.slow_waits"  # in the environ
_PATHS = sysconfig.get_paths()
INSTALLED = {os.path.join(_PATHS[name], "") for name in ("purelib", "platlib")}
OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
LIBRARIES = (OURS, os.path.join(_PATHS["stdlib"], ""), *INSTALLED)
DRIVERS = (
    OURS,
    *(folder + name for folder in INSTALLED for name in ("gevent", "psycopg2", "pymongo")),
)

min_s = inf  # waits that take at least that long in all are shown; infinite: none is noted


class Wait(NamedTuple):
    """
    What a request has waited for.

    :param what: what it waited for, str, as :func:`greenline.hub.deadline.spending` names it.
    :param sent: the statement without its values, or the command, str; empty where none is known.
    :param times: how often the statement or command was sent, or the wait began, int.
    :param took_s: seconds in all, float.
    :param function: the function of the application, ``module.function:line``, str.
    """

    what: str
    sent: str
    times: int
    took_s: float
    function: str

    def __str__(self) -> str:
        times = f" {self.times} times" if self.times > 1 else ""
        sent = f" ({printable(self.sent)})" if self.sent else ""
        return f"{self.what} {self.took_s * 1000:.0f} ms{times} in {self.function}{sent}"


class Waits:
    """The waits of a request. It does not show them itself: statements may have values."""

    def __init__(self) -> None:
        self.statement = ""  # that is executed now
        self.is_begun = False  # a wait for it was noted: psycopg2 waits for BEGIN first
        self._kinds: dict[tuple[str, str], list[Any]] = {}

    def begin(self, statement: str) -> str:
        """Note what is executed now; return what was before."""
        outer, self.statement, self.is_begun = self.statement, statement, False
        return outer

    def note(self, what: str, took_s: float, sent: str, times: int = 1) -> None:
        """
        Note a wait that has ended.

        :param what: what it was for, str.
        :param took_s: seconds that it took, float.
        :param sent: the statement or command, str.
        :param times: 0 for a further wait for the same one, int, default 1.
        """
        kind = self._kinds.get((what, sent))
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:
                sent = ""
            kind = self._kinds.setdefault((what, sent), [0, 0.0, ""])
        kind[0] += times
        kind[1] += took_s
        if kind[1] >= min_s and not kind[2]:
            kind[2] = _caller()

    def shown(self) -> list[Wait]:
        """Return what took ``min_s`` or longer in all, the longest first."""
        sums: dict[tuple[str, str], Wait] = {}
        for (what, sent), (times, took_s, function) in self._kinds.items():
            text = without_values[what](sent) if what in without_values else sent
            same = sums.get((what, text), Wait(what, text, 0, 0.0, ""))
            times, took_s = times + same.times, took_s + same.took_s
            sums[what, text] = Wait(what, text, times, took_s, same.function or function or "-")
        found = sorted(sums.values(), key=lambda each: -each.took_s)
        return [each for each in found if each.took_s >= min_s][:MAX_SHOWN]


# By what a wait is for: a function that returns a statement without its values.
without_values: dict[str, Callable[[str], str]] = {}
# What the waits are noted of elsewhere, one by one: a block with several commands is one wait.
noted_elsewhere: set[str] = set()


def of(environ: dict[str, Any]) -> Waits:
    """Return the waits of a request."""
    found: Waits | None = environ.get(NOTED)
    if found is None:
        found = environ[NOTED] = Waits()
    return found


def note(environ: dict[str, Any], what: str, took_s: float) -> None:
    """
    Note a wait of the calling greenlet.

    :param environ: of its request.
    :param what: what it waited for, str.
    :param took_s: seconds, float.
    """
    if what in noted_elsewhere:
        return
    waits = of(environ)
    if what == "postgres" and waits.statement:
        waits.note(what, took_s, waits.statement, not waits.is_begun)
        waits.is_begun = True
    else:
        waits.note(what, took_s, "")


def _caller() -> str:
    """Return the innermost function of the application."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(2))]
    files = [frame.f_code.co_filename for frame in frames]
    # An application may be installed among the libraries, as mlflow is.
    for others in (LIBRARIES, DRIVERS):
        for frame, file in zip(frames, files, strict=True):
            if not file.startswith(others):
                module = os.path.basename(file).removesuffix(".py")
                return f"{module}.{frame.f_code.co_name}:{frame.f_lineno}"
    return "-"

"""Note which waits of a request took long, which function waited, and for which statement."""

import os
import sys
import sysconfig
import traceback
from math import inf
from typing import Any, NamedTuple

MAX_NOTED = 20  # of a request
# In the environ: the waits, and the last statement or command that was sent, by what answers it.
NOTED, SENT = "greenline.slow_waits", "greenline.sent."
_PATHS = sysconfig.get_paths()
INSTALLED = {os.path.join(_PATHS[name], "") for name in ("purelib", "platlib")}
OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
LIBRARIES = (OURS, os.path.join(_PATHS["stdlib"], ""), *INSTALLED)
DRIVERS = (
    OURS,
    *(folder + name for folder in INSTALLED for name in ("gevent", "psycopg2", "pymongo")),
)

min_s = inf  # a wait that takes at least that long is noted; the worker sets it


class SlowWait(NamedTuple):
    """
    A wait that took long.

    :param what: what it waited for, str, as :func:`greenline.hub.deadline.spending` names it.
    :param took_s: seconds, float.
    :param function: ``module.function:line`` of the application, str.
    :param sent: the statement without its values, or the command, str; empty where none is known.
    """

    what: str
    took_s: float
    function: str
    sent: str

    def __str__(self) -> str:
        waited = f"{self.what} {self.took_s * 1000:.0f} ms in {self.function}"
        return f"{waited} ({self.sent})" if self.sent else waited


def note(environ: dict[str, Any], what: str, took_s: float) -> None:
    """
    Note a wait of the calling greenlet.

    :param environ: of its request.
    :param what: what it waited for, str.
    :param took_s: seconds, float.
    """
    noted = environ.setdefault(NOTED, [])
    if len(noted) < MAX_NOTED:
        text, shown = environ.get(SENT + what, ("", str))
        noted.append(SlowWait(what, took_s, _caller(), shown(text)))


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

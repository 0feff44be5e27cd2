"""A psycopg2 that is not as we know it keeps its own connect, with one warning."""

import re
import tomllib

import pytest

from greenline.postgres import psycopg2_compat
from tests.helpers.support import CHECKOUT, run

GONE = "del psycopg2._psycopg._connect\n"
OTHER = """
def connect(dsn, connection_factory=None):
    return psycopg2._psycopg._connect(dsn, connection_factory)
connect.__module__, psycopg2.connect = "psycopg2", connect
del psycopg2._connect
"""
WRAPPED = """
inner = psycopg2.connect
psycopg2.connect = lambda *args, **kwargs: inner(*args, **kwargs)
"""
NO_LIBPQ = "import greenlet; psycopg2._psycopg.__file__ = greenlet._greenlet.__file__\n"
SHOW = """
from greenline.patch import patch_all
patch_all()
from greenline.postgres import backlog, cancel, foreign
print(getattr(psycopg2, "_connect", None) is foreign.connect, cancel.libpq is not None)
try:
    backlog.connect("host=/nowhere", None)
except psycopg2.OperationalError:
    print("asked")
"""


def shown(before: str) -> tuple[list[str], str]:
    """Return what a process prints after *before*, and its log."""
    done = run(["python", "-W", "ignore", "-c", f"import psycopg2\n{before}{SHOW}"], {})
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("before", "answer", "reason"),
    [
        pytest.param(GONE, "False True", "_psycopg._connect is gone", id="the function is gone"),
        pytest.param(OTHER, "False True", "connect() does not call", id="it is not called"),
        pytest.param(NO_LIBPQ, "True False", "PQgetCancel", id="libpq cannot be reached"),
    ],
)
def test_an_unknown_psycopg2_stays_as_it_is(before: str, answer: str, reason: str) -> None:
    """It connects, and one warning names the version, the reason and the supported versions."""
    answers, log = shown(before)
    assert answers == [answer, "asked"]
    assert re.fullmatch(r"psycopg2 [0-9.]+ is not supported \(.*\): .*; install .*\n", log)
    assert reason in log
    assert psycopg2_compat.PSYCOPG2_SUPPORTED in log


@pytest.mark.parametrize(
    "before",
    [pytest.param("", id="as it is"), pytest.param(WRAPPED, id="wrapped by a monitoring agent")],
)
def test_a_known_psycopg2_is_patched(before: str) -> None:
    """What may differ without harm changes nothing."""
    assert shown(before) == (["True True", "asked"], "")


def test_the_supported_range_is_the_extras_own() -> None:
    """pip refuses what the check would warn of."""
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    wanted = f"psycopg2{psycopg2_compat.PSYCOPG2_SUPPORTED}"
    assert wanted in extras["optional-dependencies"]["postgres"]

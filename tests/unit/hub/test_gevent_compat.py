"""A gevent that is not as we know it is refused in one line."""

import re
import tomllib

import pytest

from greenline.hub import gevent_compat
from tests.helpers.support import CHECKOUT, run

GONE = "import gevent.os; del gevent.os._watched_children\n"
MOVED = "import sys, gevent; sys.modules['gevent.thread'] = None\n"
MEMBER_GONE = "from gevent._socketcommon import SocketMixin; del SocketMixin._wait\n"
OTHER = "import gevent.os; gevent.os._watch_child = lambda pid, callback: None\n"
IN_POPEN = "from gevent.subprocess import Popen; del Popen._on_child\n"
WRAPPED = (
    "import gevent.os\n"
    "inner = gevent.os._watch_child\n"
    "gevent.os._watch_child = lambda *args, **kwargs: inner(*args, **kwargs)\n"
)
WORKER = "from greenline.worker import GreenWorker; print('imported')"
SCRIPT = "from greenline.patch import patch_all; patch_all(); print('imported')"


def imported(before: str, then: str) -> tuple[int, str]:
    """Return the status and the output of a process that runs *then* after *before*."""
    done = run(["python", "-W", "ignore", "-c", before + then], {}, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.mark.parametrize(
    ("before", "then", "reason"),
    [
        pytest.param(GONE, WORKER, "cannot import name '_watched_children'", id="a name is gone"),
        pytest.param(MOVED, WORKER, "gevent.thread", id="a module is gone"),
        pytest.param(MEMBER_GONE, WORKER, "socket._wait is gone", id="a method is gone"),
        pytest.param(OTHER, WORKER, "_watch_child(pid, callback)", id="other parameters"),
        pytest.param(GONE, SCRIPT, "cannot import name '_watched_children'", id="in a script"),
        pytest.param(IN_POPEN, SCRIPT, "Popen._on_child is gone", id="subprocess"),
    ],
)
def test_an_unknown_gevent_is_refused_in_one_line(before: str, then: str, reason: str) -> None:
    """The line names the version, the reason and the versions that are supported."""
    status, output = imported(before, then)
    assert status == 1
    # Python 3.11 may add "Exception ignored in tp_clear" where the process ends half patched.
    output = output.partition("\nException ignored in tp_clear")[0]
    assert re.fullmatch(r"greenline: gevent [0-9.]+ is not supported \(.*\): install .*", output)
    assert reason in output
    assert gevent_compat.GEVENT_SUPPORTED in output


@pytest.mark.parametrize("then", [WORKER, SCRIPT], ids=["worker", "script"])
def test_a_gevent_that_an_agent_has_wrapped_is_taken(then: str) -> None:
    """What may differ without harm does not stop the worker."""
    assert imported(WRAPPED, then) == (0, "imported")


def test_the_supported_range_is_the_packages_own() -> None:
    """pip refuses what the check would refuse."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert f"gevent{gevent_compat.GEVENT_SUPPORTED}" in project["dependencies"]

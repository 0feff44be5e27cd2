"""Hypothesis, the time of gevent's loop, Ctrl-C and curl, for all tests."""

import gc
import os
import shlex
import shutil
import signal
from contextlib import suppress

import gevent
import pytest
from hypothesis import HealthCheck, settings

from embedded import debian
from greenline.errors import ConfigError
from greenline.hub import deadline

# How long an example takes says how busy the machine is.
settings.register_profile("greenline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("greenline")

# A shell's job in the background ignores SIGINT, and what it starts would ignore it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems() -> None:
    # Once for each file of tests.side_by_side. What was imported stays: a collection of garbage,
    # of which tests ask for many, need not look at it.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    # The timeout of gevent.joinall() begins with the loop's last round, which may be of a test that
    # ran a minute ago.
    gevent.get_hub().loop.update_now()
    # A test that answers a request in this greenlet leaves its environ behind.
    deadline.count_in(None)


@pytest.fixture(scope="session", autouse=True)
def _curl(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fetch curl where there is none, as on a fresh Debian: the commands of the pages run it."""
    if shutil.which("curl") is not None:
        return
    with suppress(ConfigError):
        command, env = debian.program("curl")
        wrapper = tmp_path_factory.mktemp("bin") / "curl"
        libraries = shlex.quote(env["LD_LIBRARY_PATH"])
        wrapper.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {command} "$@"\n')
        wrapper.chmod(0o755)
        os.environ["PATH"] += f"{os.pathsep}{wrapper.parent}"

"""Hypothesis, the time of gevent's loop, Ctrl-C and curl, for all tests."""

import gc
import os
import shlex
import shutil
import signal
from contextlib import suppress

import gevent
from hypothesis import HealthCheck, settings

from embedded import debian
from greenline.errors import ConfigError
from greenline.hub import deadline

# How long an example takes says how busy the machine is.
settings.register_profile("greenline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("greenline")

# A shell's job in the background ignores SIGINT, and what it starts would ignore it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _add_curl() -> None:
    """Put Debian's curl on the PATH: the commands of the pages run it."""
    command, env = debian.program("curl")
    folder = debian.FOLDER / "bin"
    folder.mkdir(exist_ok=True)
    new = folder / f"curl.{os.getpid()}"
    libraries = shlex.quote(env["LD_LIBRARY_PATH"])
    new.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {command} "$@"\n')
    new.chmod(0o755)
    new.replace(folder / "curl")
    os.environ["PATH"] += f"{os.pathsep}{folder}"


# Here and not in a fixture, which tests.side_by_side may not find. A fresh Debian has no curl.
if shutil.which("curl") is None:
    with suppress(ConfigError):
        _add_curl()


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

"""Hypothesis, the time of gevent's loop, and Ctrl-C, for all tests."""

import gc
import signal

import gevent
from hypothesis import HealthCheck, settings

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

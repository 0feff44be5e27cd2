"""Repeat work in the background for as long as the worker lives."""

import logging
import os
from collections.abc import Callable

import gevent

from greenline.errors import GreenlineError

log = logging.getLogger(__name__)


def keep_doing(
    work: Callable[[], object], pause_s: Callable[[], float], what: str
) -> "gevent.Greenlet[..., None]":
    """
    Call *work* in a greenlet of its own, again after each pause, until the greenlet is killed.

    :param work: a function; its errors do not end the repetition.
    :param pause_s: returns the seconds until the next call, float; asked after each call.
    :param what: the name of the work in the log.
    :returns: the greenlet.
    """
    pid = os.getpid()

    def keep() -> None:
        while os.getpid() == pid:  # a forked child has the greenlet as well
            try:
                work()
            # Not logged, because the readiness check reports it.
            except GreenlineError:
                pass
            except Exception:
                log.exception("%s failed", what)
            gevent.sleep(pause_s())

    return gevent.spawn(keep)

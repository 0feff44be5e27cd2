"""The watchdog's entry says what to do about the function that blocked the hub."""

import gevent
import pytest
from gevent.monkey import get_original

from greenline import offload
from greenline.hub.watchdog import Watchdog
from tests.helpers.support import wait_until


def test_the_entry_ends_with_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    """With the name of the innermost function that is not the standard library's."""
    watchdog = Watchdog(0.05, advise=offload.advice_for)
    watchdog.start()
    try:
        gevent.sleep(0.1)
        wait_below_python()
        # On a busy machine the log may have an entry on something else first; this one follows.
        advice = f"GREENLINE_OFFLOAD={__name__}:wait_below_python"
        wait_until(lambda: advice in caplog.text, "the entry")
    finally:
        watchdog.stop()


def wait_below_python() -> None:
    # Longer than a busy machine stops this process: of several blocks the longest has an entry.
    get_original("time", "sleep")(1.0)

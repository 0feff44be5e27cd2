"""The look at all threads that faulthandler writes, its stack, and what keeps the hub."""

import os
from itertools import count

import gevent
import pytest

from greenline.hub.watchdog import LOOK_EVERY_S, LOOK_FOR_S, Watchdog, _sections, stack_of
from greenline.telemetry.reports import function_of


@pytest.mark.parametrize("name", ["", " [gunicorn]"], ids=["up to 3.13", "from 3.14 on"])
def test_finds_the_hubs_thread_among_others(name: str) -> None:
    """By its number, in each of the looks."""
    look = (
        f"Thread 0x00007f00000012ab{name} (most recent call first):\n"
        '  File "other.py", line 1 in other\n\n'
        f"Current thread 0x00000000000012ac{name} (most recent call first):\n"
        '  File "watchdog.py", line 2 in _record\n\n'
        f"Thread 0x00000000000012ab{name} (most recent call first):\n"
        '  File "inner.py", line 4 in inner\n'
        "  File ???, line ??? in ???\n"
        "  ...\n\n"
    )
    sections = _sections((look * 2).encode(), 0x12AB)
    assert [stack_of(section) for section in sections] == [
        [("", 0, "???"), ("inner.py", 4, "inner")]
    ] * 2


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["/shop/views.py", f"{os.path.dirname(os.__file__)}/socket.py"], "views.f0"),
        (["/shop/views.py", f"{os.path.dirname(os.__file__)}/site-packages/x/y.py"], "y.f1"),
        ([f"{os.path.dirname(os.__file__)}/socket.py"], "socket.f0"),
    ],
    ids=["of the application", "of a library", "of the standard library alone"],
)
def test_the_function_that_blocks_has_a_short_name(files: list[str], expected: str) -> None:
    """The innermost one that is not the standard library's."""
    stack = [(file, 1, f"f{number}") for number, file in enumerate(files)]
    assert function_of(stack) == expected


def test_a_hub_in_which_requests_have_begun_is_watched_from_time_to_time() -> None:
    """It need not be late: many short calls into C code may follow one another."""
    begun = [0]
    watchdog = Watchdog(progress=lambda: begun[0])
    assert not watchdog._looks(0.0)
    begun[0] += 1
    assert watchdog._looks(0.5)
    assert watchdog._looks(0.5 + LOOK_FOR_S / 2)
    begun[0] += 1
    assert not watchdog._looks(0.5 + LOOK_EVERY_S / 2)
    assert watchdog._looks(0.5 + LOOK_EVERY_S)
    assert not watchdog._looks(0.5 + 2 * LOOK_EVERY_S)


def test_what_keeps_the_hub_is_interrupted_while_it_is_active() -> None:
    asked: list[bool] = []
    # A hub that is late is interrupted as well, but without a look.
    watchdog = Watchdog(progress=count(1).__next__, interrupt=asked.append)
    watchdog.start()
    with gevent.Timeout(60):  # a thread that wakes late does not know: it looks again each second
        while not any(asked):
            gevent.sleep(0.01)
    watchdog.stop()

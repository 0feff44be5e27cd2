"""The look at all threads that faulthandler writes, and the stack that the watchdog takes of it."""

import pytest

from greenline.hub.watchdog import _sections, stack_of


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

"""What ``make test`` leaves to the long forms: whole tests, and further cases of one."""

from collections.abc import Sequence
from typing import TypeVar

import pytest

from tests.helpers.support import IS_LONG

T = TypeVar("T")
in_the_long_form = pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 tries more")


def some(cases: Sequence[T], count: int = 1) -> Sequence[T]:
    """Return the first *count* of *cases*; in the long form, all of them."""
    return cases if IS_LONG else cases[:count]

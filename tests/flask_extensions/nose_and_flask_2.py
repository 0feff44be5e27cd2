"""A plugin of pytest with what Flask-RESTful's tests need, which are older than this Flask."""

from inspect import isgeneratorfunction
from typing import Any

import flask.signals
import pytest

flask.signals.signals_available = True  # type: ignore[attr-defined]  # it is, since Flask 2.3


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: Any) -> Any:
    """Make one test of the cases that a generator yields, as nose called them."""
    if not name.startswith("test") or not isgeneratorfunction(obj):
        return None

    def call_all() -> None:
        for check, *values in obj():
            check(*values)

    return pytest.Function.from_parent(collector, name=name, callobj=call_all)

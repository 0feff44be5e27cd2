import logging
import sys
from collections.abc import Iterator

import pytest

from greenline.offload import pages as module
from greenline.offload.pages import Pages

OURS = {"app", "bench", "config", "conftest", "embedded", "tests"}


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """Pages that are counted, of an application that has no pool of ours."""
    for name in module.OF_ONE_THREAD:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(module, "GREEN", {*module.GREEN, *OURS})
    module._uses_gevent.cache_clear()
    made = Pages(logging.getLogger("test"))
    made.is_counting = lambda: True
    yield made
    module._uses_gevent.cache_clear()

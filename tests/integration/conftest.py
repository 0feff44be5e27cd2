"""MongoDB through a proxy that misbehaves when told to."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from embedded.mongo import Mongo as Server
from greenline.mongo.client import Mongo
from tests.proxy import Proxy

# A Mongo of the test's own database behind the proxy: connect(size, "option=value", ...)
Connect = Callable[..., Mongo]


@pytest.fixture
def mongo_proxy(mongo: Server) -> Iterator[Proxy]:
    """A proxy before the session's MongoDB, with nobody else on it."""
    with Proxy(("127.0.0.1", mongo.port)) as proxy:
        yield proxy
        proxy.pass_on()


@pytest.fixture
def connect(empty_mongo: str, mongo_proxy: Proxy) -> Iterator[Connect]:
    """Makes clients of a new database behind the proxy, and closes them at the end."""
    name = empty_mongo.rpartition("/")[2]

    def make(size: int = 5, *in_uri: str, timeout_s: float = 5, **more: Any) -> Mongo:
        query = "&".join(("directConnection=true", *in_uri))
        uri = f"mongodb://127.0.0.1:{mongo_proxy.port}/{name}?{query}"
        made = Mongo(uri, size_for=lambda _: size, timeout_s=timeout_s, **more)
        stack.callback(made.close)
        return made

    with ExitStack() as stack:
        yield make
        mongo_proxy.pass_on()

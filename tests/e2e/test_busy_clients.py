"""A client that always has more to send, or to receive, takes turns with the others."""

import http.client
import socket
from contextlib import closing
from itertools import pairwise
from statistics import fmean, median

import gevent
import pytest

from tests.e2e.hosting import hosting
from tests.helpers.load import Load
from tests.helpers.support import wait_until


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"GET /busy HTTP/1.1\r\nHost: h\r\n\r\n" * 3_000, id="a pipeline"),
        pytest.param(b"GET /busy-parts HTTP/1.1\r\nHost: h\r\n\r\n", id="a stream"),
    ],
)
def test_between_two_turns_of_another_client_are_few_of_the_busy_one(said: bytes) -> None:
    """While thousands of milliseconds of work are there, who asks waits for some, not for fifty."""
    with hosting("tests.e2e.legacy:app") as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)

        def turns() -> int:
            connection.request("GET", "/been-busy")
            return int(connection.getresponse().read())

        with socket.create_connection(("127.0.0.1", running.port)) as busy, closing(connection):
            busy.sendall(said)
            wait_until(turns, "the busy client to be served")
            seen = [turns() for _ in range(21)]
    assert seen[-1] < 3_000
    assert 0 < median(after - before for before, after in pairwise(seen)) < 25


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        pytest.param("/compute/0.01", "", id="at once"),
        pytest.param("/read-and-compute/0.01", "", id="after a wait"),
        # Only gunicorn's parser judges such a name: the client has a greenlet of its own then.
        pytest.param("/compute/0.01", "X_Y: z\r\n", id="in its own greenlet"),
    ],
)
def test_a_small_page_waits_for_one_of_many_that_compute(path: str, headers: str) -> None:
    """Two dozen clients ask for those all the time."""
    with hosting("tests.e2e.threaded:app") as running:
        load = Load(("127.0.0.1", running.port), clients=24, path=path, headers=headers)
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)

        def computed() -> int:
            connection.request("GET", "/computed")
            return int(connection.getresponse().read())

        with closing(connection):
            wait_until(lambda: computed() > 50, "the pages to be known")
            seen = []
            for _ in range(21):
                before = computed()
                gevent.sleep(0.03)
                between = computed()
                seen.append((between - before, computed() - between))
        load.stop()
    assert load.failures == {}
    # They are served meanwhile.
    assert median(meanwhile for meanwhile, _ in seen) > 0
    assert fmean(waited for _, waited in seen) < 4

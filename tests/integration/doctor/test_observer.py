"""greenline.doctor.observer: what a process that was observed says of its requests."""

from pathlib import Path

import msgspec
import pytest

from greenline.doctor.observations import FOLDER, Observations
from tests.helpers.support import run

SCRIPT = """\
from greenline.doctor.observer import start_in_script

start_in_script()

import time
from werkzeug.test import Client

kept = []


def app(environ, start_response):
    if environ["PATH_INFO"] == "/grow":
        kept.append(b"x" * 100_000)
    elif environ["PATH_INFO"] == "/slow":
        time.sleep(0.3)
    start_response("200 OK", [])
    return [b""]


ask = Client(app).get
for _ in range(50):
    ask("/")
for _ in range(100):
    ask("{path}")
ask("/slow")
"""


@pytest.mark.parametrize("path", ["/", "/grow"])
def test_memory_and_the_longest_request(path: str, tmp_path: Path) -> None:
    """What has grown after the first fifty requests, and how long one took, by its path."""
    more = {FOLDER: str(tmp_path), "REQUEST_TIMEOUT": ""}
    run(["python", "-c", SCRIPT.format(path=path)], more)
    (document,) = tmp_path.glob("*.json")
    requests = msgspec.json.decode(document.read_bytes(), type=Observations).requests
    assert requests.count == 151
    assert 0.3 <= requests.longest_s["/slow"] < 1.3
    assert requests.timeout_s is None
    # 100 requests that keep 100 kB each.
    assert (requests.grown_kib >= 8000) is (path == "/grow")

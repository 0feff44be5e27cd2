"""The Host header of a request, RFC 9112, section 3.2, in both parsers of the worker."""

import re

import pytest

from tests.helpers.conversation import Host, green
from tests.helpers.corpus import FOLLOW

ACCEPTED = {
    "a name": b"Host: example.org\r\n",
    "a port": b"Host: example.org:8080\r\n",
    "an empty port": b"Host: example.org:\r\n",
    "IPv4": b"Host: 192.0.2.1:80\r\n",
    "IPv6": b"Host: [2001:db8::1]:80\r\n",
    "an underscore": b"Host: my_service\r\n",
    "encoded": b"Host: caf%C3%A9.example\r\n",
    "nothing": b"Host:\r\n",
    "blanks around": b"Host:  example.org \r\n",
}
REFUSED = {
    "missing": b"",
    "two": b"Host: a\r\nHost: a\r\n",
    "a blank": b"Host: a b\r\n",
    "a path": b"Host: a/b\r\n",
    "a user": b"Host: user@a\r\n",
    "a URL": b"Host: http://a\r\n",
    "a port that is none": b"Host: a:b\r\n",
    "two ports": b"Host: a:1:2\r\n",
    "an open bracket": b"Host: [::1\r\n",
    "half encoded": b"Host: a%4\r\n",
    "not ASCII": b"Host: caf\xe9\r\n",
}


@pytest.fixture(scope="module", params=["auto", "python"], ids=["fast parser", "fallback"])
def host(request: pytest.FixtureRequest) -> Host:
    """The worker with its defaults, with one of its parsers."""
    return green(http_parser=request.param)


def ask(host: Host, headers: bytes, version: bytes = b"1.1") -> bytes:
    """Return what is answered to one request and to another one behind it."""
    return host.talk([b"GET / HTTP/" + version + b"\r\n" + headers + b"\r\n" + FOLLOW]).answer


def statuses(answer: bytes) -> list[bytes]:
    """Return the statuses in what was answered."""
    return re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)


@pytest.mark.parametrize("headers", ACCEPTED.values(), ids=ACCEPTED)
def test_a_valid_host_is_served(host: Host, headers: bytes) -> None:
    """So is the request behind it."""
    assert statuses(ask(host, headers)) == [b"200", b"200"]


@pytest.mark.parametrize("headers", REFUSED.values(), ids=REFUSED)
def test_another_is_a_400(host: Host, headers: bytes) -> None:
    """The application does not see it, and the connection ends."""
    answer = ask(host, headers)
    assert statuses(answer) == [b"400"]
    assert b"Host" in answer or b"HOST" in answer
    assert host.app.seen == []


def test_a_host_that_follows_a_valid_one_is_judged_by_itself(host: Host) -> None:
    """Each request of a connection names its own."""
    good, bad = (b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % name for name in (b"a", b"a b"))
    assert statuses(host.talk([good + bad + good]).answer) == [b"200", b"400"]


def test_http_1_0_needs_none(host: Host) -> None:
    """One that it has is valid all the same."""
    assert statuses(ask(host, b"", b"1.0")) == [b"200"]
    assert statuses(ask(host, b"Host: a b\r\n", b"1.0")) == [b"400"]


@pytest.mark.parametrize("parser", ["auto", "python"])
def test_a_setting_accepts_all(monkeypatch: pytest.MonkeyPatch, parser: str) -> None:
    """GREENLINE_REQUIRE_HOST=0 is for clients that know no better."""
    monkeypatch.setenv("GREENLINE_REQUIRE_HOST", "0")
    host = green(http_parser=parser)
    for headers in (REFUSED["missing"], REFUSED["a blank"]):
        assert statuses(ask(host, headers)) == [b"200", b"200"]

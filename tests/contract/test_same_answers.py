"""
The worker answers as gunicorn's own gevent worker with its Python parser does.

Compared are all bytes of the answers but the date, each environ but its objects, what was read of
each body, whether the connection waits for another request, and whether iterables were closed.

What is different on purpose, and is left out by name:

- a start_response that replaces an earlier one replaces its headers; gunicorn sends both sets;
- a header SCRIPT_NAME is dropped, unless ``forwarder_headers`` is set;
- HTTP/1.1 without a valid Host is a 400, unless GREENLINE_REQUIRE_HOST=0, as here;
- an OSError of the application, whose client is there, is a 500; gunicorn closes without a word;
- the limits: GREENLINE_... settings, tested in tests/e2e/test_slow_clients.py. Here there is none
  to the size of a body.
"""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from greenline.http.gunicorn_compat import VERSION
from tests.helpers.conversation import Host, Outcome, green, stock
from tests.helpers.corpus import CHUNKS, CORPUS, FOLLOW, ON_PURPOSE, RESPONSES, get, post
from tests.helpers.support import IS_LONG

# gunicorn 23 and 24 have no early hints, and answer a repeated Expect twice.
OLD = ("hints", r"Expect: 100-continue\r\nExpect: 100-continue'")
OTHERWISE = ON_PURPOSE if VERSION >= (25, 0) else (*ON_PURPOSE, *OLD)
ALL = {name: data for name, data in {**CORPUS, **RESPONSES}.items() if not name.endswith(OTHERWISE)}
UNIX: dict[str, Any] = {"addr": "", "server": "/run/a.sock"}
TCP: dict[str, Any] = {}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as it comes": ({}, TCP),
    "unix socket": ({}, UNIX),
    "IPv6": ({}, {"addr": ("::1", 4711, 0, 0), "server": ("::1", 8000, 0, 0)}),
    "untrusted proxy": ({"forwarded_allow_ips": "10.0.0.1"}, TCP),
    "other scheme headers": (
        {"secure_scheme_headers": {"X-FORWARDED-PROTO": "https", "A": "1"}},
        TCP,
    ),
    "no scheme headers": ({"secure_scheme_headers": {}}, TCP),
    "header_map dangerous": ({"header_map": "dangerous"}, TCP),
    "header_map drop": ({"header_map": "drop"}, TCP),
    "forwarder headers": ({"forwarder_headers": "SCRIPT_NAME,PATH_INFO,A_B"}, TCP),
    "a script name from the proxy": ({"forwarder_headers": "SCRIPT_NAME"}, TCP),
    "obsolete folding": ({"permit_obsolete_folding": True}, TCP),
    "stripped names": ({"strip_header_spaces": True}, TCP),
    "any method": ({"permit_unconventional_http_method": True}, TCP),
    "any version": ({"permit_unconventional_http_version": True}, TCP),
    "methods without case": ({"casefold_http_method": True}, TCP),
    "low limits": (
        {"limit_request_fields": 2, "limit_request_field_size": 20, "limit_request_line": 30},
        TCP,
    ),
    "few fields": ({"limit_request_fields": 2}, TCP),
    "high limits": (
        {"limit_request_fields": 32_000, "limit_request_field_size": 0, "limit_request_line": 0},
        TCP,
    ),
    "no keep-alive": ({"keepalive": 0}, TCP),
    "no sendfile": ({"sendfile": False}, TCP),
    "max_requests": ({"max_requests": 2}, TCP),
    "PROXY protocol": ({"proxy_protocol": True}, TCP),
}


@pytest.fixture(scope="module", autouse=True)
def _no_limit() -> Iterator[None]:
    """No limit to a body's size, no Host asked for, and no noise of bodies that may not be sent."""
    logger = logging.getLogger("gunicorn.http.wsgi")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GREENLINE_MAX_BODY_BYTES", "9" * 30)
        patch.setenv("GREENLINE_REQUIRE_HOST", "0")
        patch.setattr(logger, "disabled", True)
        yield


@pytest.fixture(scope="module")
def both(_no_limit: None) -> tuple[Host, Host]:
    """gunicorn's worker and ours, with gunicorn's defaults."""
    return stock(), green()


def is_alike(theirs: Outcome, ours: Outcome) -> bool:
    """
    Return whether the outcomes are equal.

    Before gunicorn 27, ours may refuse what gunicorn reads, and closes then: it reads no request
    that gunicorn does not read, and none otherwise.
    """
    if theirs == ours or VERSION >= (27, 0):
        return theirs == ours
    if VERSION < (26, 1) and (
        b" 304 Not Modified" in ours.answer
        or any(entry[0]["REQUEST_METHOD"] == "HEAD" for entry in ours.seen)
    ):  # gunicorn sends the body that such a response must not have
        return theirs.seen == ours.seen[: len(theirs.seen)]
    common = list(zip(theirs.seen, ours.seen, strict=False))
    return (
        len(ours.seen) <= len(theirs.seen)
        and all(a[0] == b[0] and (a[1] == b[1] or isinstance(b[1], str)) for a, b in common)
        and (not ours.waited or theirs.waited)
    )


def differing(hosts: tuple[Host, Host], talks: dict[str, list[bytes]], **more: Any) -> list[str]:
    """Hold each conversation with both workers; return the names of those that differ."""
    theirs, ours = hosts
    return [
        name
        for name, segments in talks.items()
        if not is_alike(theirs.talk(segments, **more), ours.talk(segments, **more))
    ]


@pytest.mark.parametrize(("changed", "more"), VARIANTS.values(), ids=VARIANTS)
def test_whole(changed: dict[str, Any], more: dict[str, Any]) -> None:
    """Each request in one piece, another behind it, under each setting that has a say."""
    hosts = stock(**changed), green(**changed)
    assert differing(hosts, {name: [data + FOLLOW] for name, data in ALL.items()}, **more) == []


def test_whole_with_a_script_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """SCRIPT_NAME in the environment; gunicorn asks for a body even where it then refuses."""
    monkeypatch.setenv("SCRIPT_NAME", "/x")
    hosts = stock(), green()
    talks = {name: [data + FOLLOW] for name, data in ALL.items() if b"100-continue" not in data}
    assert differing(hosts, talks) == []


def test_split_in_two(both: tuple[Host, Host]) -> None:
    """Cut at every position; in the short form at four of each, most at the ends of lines."""
    talks = {
        f"{name} cut at {at}": [data[:at], data[at:] + FOLLOW]
        for name, at in _positions()
        for data in [ALL[name]]
    }
    assert differing(both, talks) == []


def test_byte_by_byte(both: tuple[Host, Host]) -> None:
    """Each byte, up to the thousandth, in a segment of its own."""
    talks = {
        name: [*(data[at : at + 1] for at in range(min(len(data), 1_000))), data[1_000:], FOLLOW]
        for name, data in ALL.items()
        if IS_LONG or len(data) < 300
    }
    assert differing(both, talks) == []


def test_cut_short(both: tuple[Host, Host]) -> None:
    """The client goes away in the middle."""
    talks = {f"{name} up to {at}": [ALL[name][:at]] for name, at in _positions()}
    assert differing(both, talks) == []


ODD = st.sampled_from(
    [b"\r\n", b"\n", b"\r", b" ", b"\t", b"\x00", b":", b";", b",", b"0", b"3", b"\x80", b"\xff",
     b"%", b"?", b"#", b"/", b"//", b"chunked", b"\r\n ", b"\r\n\r\n", b"HTTP/1.0", b"HTTP/1.1",
     b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
     b"Expect: 100-continue\r\n", b"Host: a\r\n", b"X-Forwarded-Proto: https\r\n", b"A_B: c\r\n"]
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> list[bytes]:
    """One or two requests of the corpus with a few changes, cut into segments."""
    names = sorted(name for name, data in ALL.items() if len(data) < 2_000)
    data = b"".join(
        ALL[name] for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=2))
    )
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 6)))
        part = draw(st.one_of(st.just(b""), ODD, st.binary(max_size=3), st.just(data[start:end])))
        data = data[:start] + part + data[end if draw(st.booleans()) else start :]
    data += FOLLOW
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(mutated())
@example([b"GET / HTTP/1.1\r\nHost: a\r\n\r\n\n" + FOLLOW])
@settings(
    max_examples=20_000 if IS_LONG else 300,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
def test_mutated(both: tuple[Host, Host], segments: list[bytes]) -> None:
    """Requests of the corpus, changed at random."""
    theirs, ours = (host.talk(segments) for host in both)
    assert is_alike(theirs, ours)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(get(target="/\x7f"), id="control in the target"),
        pytest.param(get(target="/\xe9"), id="target that is not ASCII"),
        pytest.param(get(target="example.org:80"), id="authority"),
        pytest.param(get(target="*"), id="asterisk"),
        pytest.param(get("A: \x01"), id="control in a header"),
        pytest.param(get("Host: other"), id="two hosts"),
        pytest.param(post(b"abc", "Transfer-Encoding: gzip"), id="coding without chunked"),
        pytest.param(post(CHUNKS, "Transfer-Encoding: chunked\xa0"), id="coding with a blank"),
        pytest.param(
            post(b"3;a\nb\r\nabc\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), id="LF in a chunk"
        ),
        pytest.param(
            post(b"3;" + b"a" * 9_000 + b"\r\nabc", "Transfer-Encoding: chunked")[:8_500]
            + b"a" * 9_000,
            id="endless line of a chunk",
        ),
        pytest.param(
            post(b"3\r\nabc\r\n0\r\nHost: a\r\n\r\n", "Transfer-Encoding: chunked"),
            id="forbidden trailer",
        ),
    ],
)
def test_what_gunicorn_27_refuses_is_refused_with_an_older_one(
    both: tuple[Host, Host], data: bytes
) -> None:
    """A 400, and what follows is not read as a request."""
    outcome = both[1].talk([data + FOLLOW])
    assert outcome.answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 "))
    assert not any(entry[0]["RAW_URI"] == "/follow" for entry in outcome.seen)


def test_what_differs_on_purpose(both: tuple[Host, Host]) -> None:
    """Headers replace others, an OSError is answered, nothing follows what is incomplete."""
    answers = {
        kind: [host.talk([RESPONSES[f"respond GET {kind}"] + FOLLOW]).answer for host in both]
        for kind in ON_PURPOSE
    }
    theirs, ours = answers["replaced"]
    assert (theirs.count(b"Content-Length"), ours.count(b"Content-Length")) == (3, 2)
    theirs, ours = answers["incomplete"]
    assert (theirs.count(b"HTTP/1.1"), ours.count(b"HTTP/1.1")) == (2, 1)
    theirs, ours = answers["oserror"]
    assert (theirs, ours[:13]) == (b"", b"HTTP/1.1 500 ")


def test_a_difference_would_be_noticed(both: tuple[Host, Host]) -> None:
    """Every part of an outcome counts."""
    said = both[0].talk([FOLLOW])
    assert said == both[0].talk([FOLLOW])
    assert said.waited
    assert said.seen[0][0]["RAW_URI"] == "/follow"
    others = [
        Outcome(said.answer + b"x", said.seen, said.waited, said.closed),
        Outcome(said.answer, [], said.waited, said.closed),
        Outcome(said.answer, said.seen, False, said.closed),
        Outcome(said.answer, said.seen, said.waited, 1),
    ]
    assert said not in others


def _positions() -> Iterator[tuple[str, int]]:
    """Yield where to cut what is in the corpus: the short form takes turns at twelve places."""
    for number, (name, data) in enumerate(ALL.items()):
        if IS_LONG:
            yield from ((name, at) for at in range(min(len(data), 3_000) + 1))
            continue
        line, head, end = data.find(b"\r\n"), data.find(b"\r\n\r\n"), len(data)
        near = [line, head, 1, line + 1, head + 1, end // 3, line + 2, head + 2, end // 2]
        near += [head + 4, head + 3, end - 1]
        chosen = near[number % 3 :: 3]
        yield from ((name, at) for at in sorted({*chosen}) if 0 <= at <= end)

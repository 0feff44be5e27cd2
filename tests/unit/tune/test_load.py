"""What is offered: a path, a URL, a HAR file, an access log."""

import json
from pathlib import Path

import pytest

from greenline.errors import ConfigError
from greenline.tune import load
from greenline.tune.load import Request

NGINX = '::1 - - [26/Nov/2026:12:00:00 +0000] "{}" {} 5 "-" "curl/8"'
GUNICORN = '[2026-11-26 12:00:00 +0000] [INFO] ::1 "{}" {} 5 3ms id=- proxy=-ms'


def log(path: Path, *lines: tuple[str, int], form: str = NGINX) -> str:
    path.write_text("\n".join(form.format(line, status) for line, status in lines))
    return str(path)


def har(path: Path, *requests: dict[str, object]) -> str:
    entries = [{"request": one} for one in requests]
    path.write_text(json.dumps({"log": {"version": "1.2", "entries": entries}}))
    return str(path)


def sent(method: str, url: str, **more: object) -> dict[str, object]:
    return {"method": method, "url": url, "headers": [], **more}


@pytest.mark.parametrize(
    ("given", "target"),
    [("/books?limit=3", "/books?limit=3"), ("http://h:8/a?b=c", "/a?b=c"), ("http://h", "/"),
     ("//other.example/a", "/other.example/a"), ("http://h//other/a", "/other/a"),
     ("/b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher?q=%20", "/b%C3%BCcher?q=%20")],
)  # fmt: skip
def test_a_path_and_a_url_are_one_get(given: str, target: str) -> None:
    """The host of a URL does not count: it is that of --url, or of the server that is started."""
    assert load.read(given).requests == [Request("GET", target)]


@pytest.mark.parametrize("form", [NGINX, GUNICORN], ids=["nginx", "gunicorn"])
def test_a_log_is_offered_as_often_as_it_was_asked(tmp_path: Path, form: str) -> None:
    """GET and HEAD that were answered; not a POST, a redirect or an error of then."""
    file = log(
        tmp_path / "access.log",
        ("GET /a HTTP/1.1", 200), ("GET /a HTTP/1.1", 304), ("HEAD /b HTTP/1.1", 200),
        ("GET //other.example/ HTTP/1.1", 200), ("POST /c HTTP/1.1", 200),
        ("GET /d HTTP/1.1", 302), ("GET /e HTTP/1.1", 500),
        form=form,
    )  # fmt: skip
    found = load.read(file, unsafe=True)
    assert found.requests == [
        Request("GET", "/a"), Request("GET", "/a"), Request("HEAD", "/b"),
        # Two slashes would name another host.
        Request("GET", "/other.example/"),
    ]  # fmt: skip
    assert "3 GET and 1 HEAD of 3 URLs" in found.words
    assert "without 3 other lines" in found.words


def test_of_a_har_file_the_requests_of_its_first_host_are_offered(tmp_path: Path) -> None:
    """With their headers, but without those of one connection or of the recorded client."""
    headers = [{"name": "Accept", "value": "text/html"}, {"name": "Cookie", "value": "s=1"},
               {"name": ":path", "value": "/a"}]  # fmt: skip
    file = har(
        tmp_path / "a.har",
        sent("GET", "http://h/a?x=1", headers=headers),
        sent("GET", "http://images/b"),
        sent("POST", "http://h/c", postData={"mimeType": "text/plain", "text": "body"}),
    )
    assert load.read(file).requests == [Request("GET", "/a?x=1", {"Accept": "text/html"})]
    # The command line wins, whatever the capitals.
    assert load.read(file, headers=["ACCEPT"]).requests == [Request("GET", "/a?x=1")]
    (_, posted) = load.read(file, unsafe=True).requests
    assert posted == Request("POST", "/c", {}, "body")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", "no line has a request"),
        (NGINX.format("POST /a HTTP/1.1", 200), "it has POST alone"),
        (NGINX.format("GET /a HTTP/1.1", 302), "no GET or HEAD in it was answered with 200"),
        ("{}", "no HAR file"),
        ('{"log": {"entries": []}}', "it has no GET or HEAD"),
        (
            json.dumps({"log": {"entries": [{"request": sent("PUT", "http://h/a")}]}}),
            "--unsafe-methods offers the others too",
        ),
    ],
    ids=["no log", "POSTs alone", "redirects alone", "no HAR", "empty HAR", "PUTs alone"],
)
def test_a_file_without_a_load_is_named(tmp_path: Path, text: str, reason: str) -> None:
    """One line says why."""
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(ConfigError, match=reason) as raised:
        load.read(str(file))
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_is_no_file_and_no_url_is_named() -> None:
    """A typing error in the name of a file is not a path of the application."""
    with pytest.raises(ConfigError, match=r"acces\.log: no file"):
        load.read("acces.log")


def test_headers_are_those_of_the_options_and_of_a_file(tmp_path: Path) -> None:
    """A value may have colons; a line without one is not printed, as it may be a secret."""
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer a:b\n\n")
    found = load.read_headers(["X-A: 1\r"], str(file))
    assert found == {"X-A": "1", "Authorization": "Bearer a:b"}
    with pytest.raises(ConfigError) as raised:
        load.read_headers(["secret"], None)
    assert "secret" not in str(raised.value)
    for line in (
        "X-A: \N{SNOWMAN}",
        "X-\N{LATIN SMALL LETTER U WITH DIAERESIS}: 1",
        "X-A: 1\nX-B: 2",
    ):
        with pytest.raises(ConfigError, match="in Latin-1"):
            load.read_headers([line], None)
    with pytest.raises(ConfigError, match="No such file"):
        load.read_headers([], str(tmp_path / "none"))
    file.write_bytes(b"\xff\x00")
    with pytest.raises(ConfigError, match="not a file of text"):
        load.read_headers([], str(file))

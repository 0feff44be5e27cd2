"""
Read what to offer: a path, a URL, a HAR file, or an access log of nginx or gunicorn.

A log gives its mix of routes: each line is one request, so what is asked often is offered often.
"""

import re
import shlex
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec

from greenline.errors import ConfigError

SAFE = {"GET", "HEAD"}
LAST_OF_LATIN_1 = "\xff"  # the letters that a header may have
MAX_REQUESTS = 50_000  # of a log, from its beginning
# In the common and the combined format, also behind other fields.
LINE = re.compile(r'"([A-Z]+) (/\S*) HTTP/[\d.]+" (\d\d\d)\b')
# They belong to one connection, or are those of the client that is recorded.
NOT_SENT = {
    "accept-encoding", "connection", "content-length", "cookie", "host", "if-modified-since",
    "if-none-match", "range", "transfer-encoding",
}  # fmt: skip


class Request(msgspec.Struct, frozen=True):
    """
    One request of the load.

    :param method: str.
    :param target: path and query, str.
    :param headers: that it has beside those of the command line.
    :param body: str, default none.
    """

    method: str
    target: str
    headers: dict[str, str] = {}
    body: str = ""


class Load(msgspec.Struct, frozen=True):
    """
    What is offered, in turn.

    :param requests: at least one.
    :param source: of a file's requests: its name, and what of it is not offered, str.
    """

    requests: list[Request]
    source: str = ""

    @property
    def words(self) -> str:
        """The load in words."""
        if not self.source:
            return f"{self.requests[0].method} {self.requests[0].target}"
        methods = Counter(each.method for each in self.requests)
        targets = len({each.target for each in self.requests})
        return f"{_listed(methods)} of {targets} URL{'s' * (targets != 1)} of {self.source}"


class _Pair(msgspec.Struct):
    name: str
    value: str


class _Body(msgspec.Struct):
    text: str = ""


class _Sent(msgspec.Struct, rename="camel"):
    method: str
    url: str
    headers: list[_Pair] = []
    post_data: _Body | None = None


class _Entry(msgspec.Struct):
    request: _Sent


class _Log(msgspec.Struct):
    entries: list[_Entry]


class _Har(msgspec.Struct):
    log: _Log


def read(given: str, *, unsafe: bool = False, headers: Iterable[str] = ()) -> Load:
    """
    Return the load that *given* describes.

    :param given: the path of a file, a path that begins with ``/``, or a URL, str.
    :param unsafe: also requests that are neither GET nor HEAD, bool, default False.
    :param headers: names of those of the command line, which replace those of a HAR file.
    :raises ConfigError: there is no such file, or nothing in it may be offered.
    """
    file = Path(given)
    if file.is_file():
        try:
            text = file.read_text(errors="replace")
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from error
        return (
            _har(file, text, unsafe, headers)
            if text.lstrip()[:1] == "{"
            else _access_log(file, text)
        )
    if given.startswith(("/", "http://", "https://")):
        return Load([Request("GET", _target(given))])
    raise ConfigError(
        f"{given}: no file, no path such as /books and no URL: give what to offer as --load"
    )


def read_headers(given: Iterable[str], file: str | None) -> dict[str, str]:
    """
    Return the headers that each request has.

    :param given: lines such as ``Name: value``.
    :param file: the path of a file of such lines, str or None.
    :raises ConfigError: a line is not of that form, or the file cannot be read.
    """
    lines = [*given]
    if file is not None:
        try:
            lines += [line for line in Path(file).read_text().splitlines() if line.strip()]
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file}: not a file of text: {error.reason}") from error
    found = {}
    for line in lines:
        name, colon, value = line.partition(":")
        is_name = re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII)
        value = value.strip()
        is_value = not any(letter > LAST_OF_LATIN_1 or letter in "\r\n\0" for letter in value)
        if not (colon and is_name and is_value):
            # The line may have a secret.
            raise ConfigError(
                "--header: not of the form 'Name: value', in Latin-1 and without a line break"
            )
        found[name] = value
    return found


def _access_log(file: Path, text: str) -> Load:
    lines = LINE.findall(text)
    if not lines:
        raise ConfigError(
            f"{file}: no line has a request in the common log format of nginx and gunicorn"
        )
    safe = [each for each in lines if each[0] in SAFE]
    if not safe:
        methods = ", ".join(sorted({method for method, *_ in lines}))
        # Not even with --unsafe-methods: a log has no bodies.
        raise ConfigError(f"{file}: it has {methods} alone, and only GET and HEAD are replayed")
    # A redirect or an error of then is no load.
    answered = [
        Request(method, _target(target))
        for method, target, status in safe
        if status.startswith("2") or status == "304"
    ][:MAX_REQUESTS]
    if not answered:
        raise ConfigError(f"{file}: no GET or HEAD in it was answered with 200")
    left = len(lines) - len(answered)
    source = shlex.quote(str(file))
    return Load(answered, f"{source}, without {left} other lines" if left else source)


def _har(file: Path, text: str, unsafe: bool, headers: Iterable[str]) -> Load:
    try:
        entries = msgspec.json.decode(text, type=_Har).log.entries
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: no HAR file: {error}") from error
    offered = [each.request for each in entries if unsafe or each.request.method in SAFE]
    if not offered:
        advice = "" if unsafe or not entries else "; --unsafe-methods offers the others too"
        raise ConfigError(f"{file}: it has no GET or HEAD{advice}")
    # A page has images of other hosts: those of the first entry's host are the application's.
    host = urlsplit(offered[0].url).netloc
    not_sent = {*NOT_SENT, *(name.lower() for name in headers)}
    requests = [
        Request(
            one.method,
            _target(one.url),
            {
                pair.name: pair.value
                for pair in one.headers
                if pair.name.lower() not in not_sent and not pair.name.startswith(":")
            },
            one.post_data.text if one.post_data is not None else "",
        )
        for one in offered
        if urlsplit(one.url).netloc == host
    ]
    return Load(requests, shlex.quote(str(file)))


def _target(url: str) -> str:
    # A path that begins with two slashes would name another host.
    parts = urlsplit("/" + url.lstrip("/") if url.startswith("/") else url)
    target = f"/{parts.path.lstrip('/')}{'?' * bool(parts.query)}{parts.query}"
    return quote(target, safe=string.punctuation)


def _listed(counts: Mapping[str, int]) -> str:
    return " and ".join(f"{count} {name}" for name, count in counts.items())

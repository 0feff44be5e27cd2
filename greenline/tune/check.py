"""Ask for each URL of a load once, before any is offered at a rate."""

import http.client
from collections import Counter
from collections.abc import Mapping
from time import monotonic, sleep
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from greenline.errors import ConfigError
from greenline.tune.generator import NO_ANSWER
from greenline.tune.load import Load, Request

MAX_ASKED = 200  # the most frequent ones
MIN_ASKED = 10  # a service that answers most of so many with errors is asked no more
TIMEOUT_S = 10.0
LOGIN = {http.client.UNAUTHORIZED, http.client.FORBIDDEN}


class Checked(NamedTuple):
    """
    A load that the server can answer.

    :param load: without the requests that were not answered with 2xx.
    :param fastest: the one that was answered first.
    :param fastest_s: of the answers, float seconds.
    :param mean_s: of the answers, float seconds.
    :param warnings: sentences.
    """

    load: Load
    fastest: Request
    fastest_s: float
    mean_s: float
    warnings: list[str]


def check(url: str, load: Load, headers: Mapping[str, str], max_rate: float) -> Checked:
    """
    Return *load* without the URLs that the server does not answer with 2xx.

    The most frequent ones are asked for; the others stay as they are.

    :param url: of the server, str.
    :param load: what is offered.
    :param headers: of each request.
    :param max_rate: requests a second, float.
    :raises ConfigError: most requests are not answered so; the text says what to do.
    """
    # Bodies are data: the same URL with another one is another request.
    counts = Counter(msgspec.json.encode(each) for each in load.requests)
    texts = [text for text, _ in counts.most_common(MAX_ASKED)]
    connection = _connection(url)
    took_s: dict[bytes, float] = {}
    failed: dict[bytes, tuple[Request, int, str]] = {}
    asked: dict[bytes, int] = {}  # how often it is in the load: so often a URL counts

    def are_most_failed() -> bool:
        return sum(asked[text] for text in failed) * 2 > sum(asked.values())

    try:
        connection.connect()
        # The first answer may include a connect to a database, so it is asked for twice, and the
        # second answer counts.
        for text in [texts[0], *texts]:
            if len(asked) >= MIN_ASKED and are_most_failed():
                break
            request = msgspec.json.decode(text, type=Request)
            begun_s = monotonic()
            asked[text] = counts[text]
            took_s.pop(text, None)
            failed[text] = request, NO_ANSWER, ""
            try:
                response = ask(connection, request, headers)
            except TimeoutError:
                connection.close()  # it is opened again
                continue
            failed[text] = request, response.status, response.headers.get("Location", "")
            if 200 <= response.status < 300:
                took_s[text] = monotonic() - begun_s
                del failed[text]
            sleep(max(begun_s + 1 / max_rate - monotonic(), 0.0))
    except (OSError, http.client.HTTPException) as error:
        raise ConfigError(f"{url}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if are_most_failed():
        raise ConfigError(_advice([*failed.values()], len(asked)))
    left = [each for each in load.requests if msgspec.json.encode(each) not in failed]
    warnings = []
    if failed:
        (request, status, _), more = next(iter(failed.values())), len(failed) - 1
        others = f" and {more} more" if more else ""
        warnings.append(
            f"{request.method} {request.target}{others} is not offered: it {_answered(status)}"
        )
    fastest = min(took_s, key=lambda text: took_s[text])
    return Checked(
        msgspec.structs.replace(load, requests=left),
        msgspec.json.decode(fastest, type=Request),
        took_s[fastest],
        sum(took_s.values()) / len(took_s),
        warnings,
    )


def ask(
    connection: http.client.HTTPConnection, request: Request, headers: Mapping[str, str]
) -> http.client.HTTPResponse:
    """
    Send a request, and return its answer, which has been read.

    :param connection: to the server.
    :param request: the request.
    :param headers: that it has beside its own.
    """
    # As aiohttp does: http.client would encode them as Latin-1.
    encoded = {name: value.encode() for name, value in {**headers, **request.headers}.items()}
    body = request.body.encode() or None
    connection.request(request.method, request.target, body, encoded)
    response = connection.getresponse()
    response.read()
    return response


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.netloc, timeout=TIMEOUT_S)


def _answered(status: int) -> str:
    if status == NO_ANSWER:
        return f"has no answer within {TIMEOUT_S:.0f} s"
    return f"is answered with {status}"


def _advice(failed: list[tuple[Request, int, str]], asked: int) -> str:
    request, status, location = failed[0]
    what = f"{request.method} {request.target} {_answered(status)}"
    statuses = {status for _, status, _ in failed}
    if location:
        return (
            f"{what}, a redirect to {location}: offer what answers by itself, or a session, as in "
            "--header 'Cookie: ...'"
        )
    if statuses & LOGIN:
        return f"{what}: it needs a login, as in --header 'Authorization: ...' or --header-file"
    if statuses == {http.client.NOT_FOUND} and asked > 1:
        return f"{what}, and so are {len(failed)} of {asked} URLs: the log is of another service"
    if min(statuses) >= http.client.INTERNAL_SERVER_ERROR:
        return f"{what}: it fails without any load; start it by hand, and its log says why"
    return what

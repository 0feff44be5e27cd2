"""Who may do what, over HTTP on real servers: keys, their scopes and their end, limits, headers."""

import re
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest

from app.api.operations import Operation
from app.factory import create_app
from app.store import schema, tokens
from config import load
from tests.helpers.forms import in_the_long_form
from tests.helpers.front import Front, behind_proxies
from tests.helpers.keys import make_key
from tests.helpers.support import Answer, Databases, Service, run, service, wait_until

SCOPES = ("read", "write", "admin")
LIMIT_S = 1.0  # in which every worker has heard of the end of a key
SLACK_S = 1.0
WORKERS = 2
OPEN = ("/healthz", "/readyz", "/healthcheck", "/openapi.json")
REFUSAL = (
    "greenline: AUTH: there is no API key; type flask keys create --name first "
    "--scopes read,write,admin, or set AUTH=off to let everybody in"
)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Guarded:
    """A service that asks for keys, and an admin of it."""

    def __init__(self, running: Service, admin: str) -> None:
        self.running = running
        self.admin = admin
        self.made = [admin]

    def ask(self, method: str, path: str, body: Any = None, **more: str) -> Answer:
        """Ask as the admin."""
        headers = {**bearer(self.admin), **more}
        return self.running.ask(method, path, body, headers)

    def make(self, name: str, *scopes: str, **more: Any) -> tuple[int, str]:
        """Make a key over HTTP; return its id and its token."""
        answer = self.ask("POST", "/keys", {"name": name, "scopes": scopes, **more})
        assert answer.status == 201, answer.body
        self.made.append(answer.json["key"])
        return answer.json["id"], answer.json["key"]

    def status(self, token: str, path: str = "/agents?limit=1") -> int:
        """Return what becomes of a request with *token*, on a connection of its own."""
        return self.running.get(path, headers=bearer(token)).status


@pytest.fixture(scope="module")
def environ(databases: Databases) -> dict[str, str]:
    return {**databases.environ, "AUTH": "on", "LOG_LEVEL": "debug"}


@pytest.fixture(scope="module")
def module_guarded(environ: dict[str, str]) -> Iterator[Guarded]:
    """Two workers, whose access log tells who answered."""
    admin = make_key(environ, "tests", *SCOPES)
    log = ("--access-logformat", "%(p)s %(r)s %(s)s")
    with service({**environ, "WEB_CONCURRENCY": str(WORKERS)}, *log) as running:
        yield Guarded(running, admin)


@pytest.fixture
def guarded(module_guarded: Guarded) -> Iterator[Guarded]:
    """The module's service; no token of a test is in its log, whatever the test did."""
    yield module_guarded
    log = module_guarded.running.log
    assert [token for token in module_guarded.made if token[-43:] in log] == []


@pytest.fixture(scope="module")
def operations() -> list[Operation]:
    """All that the API can do, as the application itself lists it."""
    environ = {"DATABASE_URL": "postgresql://127.0.0.1:1/none", "MONGODB_URI": "mongodb://h"}
    app = create_app(load(environ))
    app.extensions["greenline"].close()
    return list(app.extensions["operations"])


def path_of(operation: Operation) -> str:
    """Return a path that leads to *operation*, and to nothing that is there."""
    path = re.sub(r"<id:\w+>", str(2**62), operation.path)
    return re.sub(r"<(\w+:)?\w+>", "f" * 24, path)


def test_every_operation_asks_for_its_scope_and_for_no_other(
    guarded: Guarded, operations: list[Operation]
) -> None:
    """Without a key 401, with all scopes but the one 403, and with the one alone neither."""
    _, one = zip(*(guarded.make(f"only {each}", each) for each in SCOPES), strict=True)
    only = dict(zip(SCOPES, one, strict=True))
    others = {
        each: guarded.make(f"all but {each}", *(other for other in SCOPES if other != each))[1]
        for each in SCOPES
    }
    assert len(operations) > 20
    for operation in operations:
        if operation.scope is None:
            assert operation.path in OPEN
            continue
        asked = operation.method, path_of(operation)
        body = {} if operation.body is not None else None
        answer = guarded.running.ask(*asked, body)
        assert (answer.status, answer.json["code"]) == (401, "unauthorized"), asked
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        answer = guarded.running.ask(*asked, body, bearer(others[operation.scope]))
        assert (answer.status, answer.json["code"]) == (403, "forbidden"), asked
        assert answer.headers["WWW-Authenticate"] == (
            f'Bearer error="insufficient_scope", scope="{operation.scope}"'
        )
        answer = guarded.running.ask(*asked, body, bearer(only[operation.scope]))
        assert answer.status in (200, 204, 404, 422), asked


@pytest.mark.parametrize("path", OPEN)
def test_health_needs_no_key(path: str, guarded: Guarded) -> None:
    """A supervisor has none."""
    assert guarded.running.get(path).status == 200


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-1] + ("b" if token[-1] == "a" else "a"),
        lambda token: token[:-1],
        lambda token: tokens.make().text,
        lambda token: "\xe9" * len(token),
    ],
    ids=["another secret", "too short", "unknown", "not ASCII"],
)
def test_a_wrong_token_is_refused(spoil: Callable[[str], str], guarded: Guarded) -> None:
    """All in the same words: they do not tell whether the prefix is somebody's."""
    headers = bearer(spoil(guarded.admin))
    for _ in range(3):
        answer = guarded.running.get("/agents", headers=headers)
        assert (answer.status, answer.json["code"]) == (401, "invalid_token")
        assert answer.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'
        assert answer.json["detail"] == "The API key is unknown, expired or revoked."


def test_a_key_is_shown_when_it_is_made_and_never_again(guarded: Guarded) -> None:
    """One or many of them; no reading, list or change shows a secret or its hash."""
    key_id, token = guarded.make("shown once", "read")
    items = [{"name": f"shown {number}", "scopes": ["write"]} for number in range(3)]
    batch = guarded.ask("POST", "/keys/batch", {"items": items})
    assert batch.status == 201
    made = [item["key"] for item in batch.json["items"]]
    guarded.made += made
    assert len(set(made)) == 3
    assert [item["name"] for item in batch.json["items"]] == [item["name"] for item in items]
    ids = [key_id, *(item["id"] for item in batch.json["items"])]
    seen = [
        guarded.ask("GET", f"/keys/{key_id}"),
        guarded.ask("GET", "/keys?limit=100"),
        guarded.ask("POST", "/keys/batch-get", {"ids": ids}),
        guarded.ask("PATCH", f"/keys/{key_id}", {"name": "renamed"}),
        guarded.ask("PUT", f"/keys/{key_id}", {"name": "replaced", "scopes": ["read"]}),
        guarded.ask("PATCH", "/keys/batch", {"items": [{"id": ids[1], "patch": {}}]}),
    ]
    for answer in seen:
        assert answer.status == 200
        assert b"hash" not in answer.body
        for secret in (token, *made):
            assert secret[-43:].encode() not in answer.body
    assert guarded.ask("DELETE", "/keys/batch", {"ids": ids}).json == {"deleted": 4}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/keys", {"name": "once", "scopes": ["read"]}),
        ("/keys/batch", {"items": [{"name": "once", "scopes": ["read"]}]}),
        ("/keys/1/rotate", {}),
    ],
)
def test_a_key_cannot_be_made_with_an_idempotency_key(
    path: str, body: Any, guarded: Guarded
) -> None:
    """Its answer would have to be kept: a clear 422 instead of a secret in a table."""
    answer = guarded.ask("POST", path, body, **{"Idempotency-Key": "k"})
    assert (answer.status, answer.json["code"]) == (422, "invalid_request")
    assert "shown once" in answer.json["detail"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["read", "read"]},
        {"name": "x", "scopes": ["root"]},
        {"name": "", "scopes": ["read"]},
        {"name": "x", "scopes": ["read"], "expires_at": "2030-01-01T00:00:00"},
        {"name": "x", "scopes": ["read"], "prefix": "chosen"},
    ],
    ids=["no scope", "twice", "unknown scope", "no name", "no time zone", "own prefix"],
)
def test_a_wrong_key_is_not_made(wrong: Any, guarded: Guarded) -> None:
    """The response says what is wrong."""
    answer = guarded.ask("POST", "/keys", wrong)
    assert answer.status == 422
    assert answer.json["errors"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00.000000Z"),
        ("9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_a_moment_that_is_in_no_year_elsewhere_is_kept(
    given: str, kept: str, guarded: Guarded
) -> None:
    """The first and the last moment have neighbours in other time zones that no document has."""
    made = {"name": "edge", "scopes": ["read"], "expires_at": given}
    answer = guarded.ask("POST", "/keys", made)
    assert (answer.status, answer.json["expires_at"]) == (201, kept)
    assert guarded.ask("PATCH", f"/keys/{answer.json['id']}", {"name": "edges"}).status == 200
    assert guarded.ask("DELETE", f"/keys/{answer.json['id']}").status == 204


def two_of_a_name(guarded: Guarded) -> Answer:
    return guarded.ask("POST", "/keys", {"name": "tests", "scopes": ["read"]})


def test_a_name_is_given_once(guarded: Guarded) -> None:
    """An operator revokes by name."""
    answer = two_of_a_name(guarded)
    assert (answer.status, answer.json["constraint"]) == (409, "api_keys_name_unique")


def refused_within_a_second(guarded: Guarded, token: str, end: Callable[[], object]) -> set[int]:
    """
    Let many ask without a pause while *end* ends the key; return the responses after it.

    A request that begins more than a second after *end* is refused, whichever of the workers
    answers it, and before it none was.
    """
    answered: list[tuple[float, int]] = []
    stop = time.monotonic() + 30

    def ask() -> None:
        while time.monotonic() < stop:
            began = time.monotonic()
            answered.append((began, guarded.status(token)))

    with ThreadPoolExecutor(4) as clients:
        asking = [clients.submit(ask) for _ in range(4)]
        wait_until(lambda: len(answered) > 20, "answers")
        before = time.monotonic()
        end()
        after = time.monotonic()
        stop = after + LIMIT_S + 1
        for one in asking:
            one.result()
    assert {status for began, status in answered if began < before - 0.5} <= {200}
    late = {status for began, status in answered if began > after + LIMIT_S}
    assert late
    return late


def test_a_revoked_key_is_refused_by_every_worker_within_a_second(guarded: Guarded) -> None:
    """Both workers remember it, and both forget it in time."""
    key_id, token = guarded.make("revoked", "read")
    mark = len(guarded.running.log)

    def workers(status: str) -> set[str]:
        """Return those that have answered so."""
        line = rf"^<?(\d+)>? GET /agents\S* \S+ {status}"
        return set(re.findall(line, guarded.running.log[mark:], re.M))

    def revoke() -> None:
        # On a busy machine one may answer all for a while.
        wait_until(lambda: len(workers("200")) == WORKERS, "both to answer")
        assert guarded.ask("DELETE", f"/keys/{key_id}").status == 204

    assert refused_within_a_second(guarded, token, revoke) == {401}

    def both_refuse() -> bool:
        assert guarded.status(token) == 401
        return len(workers("401")) == WORKERS

    wait_until(both_refuse, "both to refuse")


def test_a_narrowed_key_is_refused_within_a_second(guarded: Guarded) -> None:
    """What it may no longer do is 403: it is still a key."""
    key_id, token = guarded.make("narrowed", "read", "write")

    def narrow() -> None:
        assert guarded.ask("PATCH", f"/keys/{key_id}", {"scopes": ["write"]}).status == 200

    assert refused_within_a_second(guarded, token, narrow) == {403}


def test_an_expiring_key_is_refused_within_a_second(guarded: Guarded) -> None:
    """It works until its moment, by the database's clock."""
    moment = datetime.now(UTC) + timedelta(seconds=2)
    _, token = guarded.make("expiring", "read", expires_at=moment.isoformat())

    def expire() -> None:
        time.sleep(max((moment - datetime.now(UTC)).total_seconds(), 0))

    assert refused_within_a_second(guarded, token, expire) == {401}


def test_a_rotated_key_has_two_tokens_until_the_overlap_ends(guarded: Guarded) -> None:
    """The new one works at once, the old one for as long as was said, both with the same scopes."""
    key_id, old = guarded.make("rotated", "read")
    rotated = guarded.ask("POST", f"/keys/{key_id}/rotate", {"overlap_s": 3})
    assert rotated.status == 200
    until = datetime.fromisoformat(rotated.json["previous_until"])
    new = rotated.json["key"]
    guarded.made.append(new)
    assert (rotated.json["id"], rotated.json["version"]) == (key_id, 2)
    assert new != old
    assert guarded.status(old) == guarded.status(new) == 200

    def end() -> None:
        time.sleep(max((until - datetime.now(UTC)).total_seconds(), 0))

    assert refused_within_a_second(guarded, old, end) == {401}
    assert guarded.status(new) == 200


def test_a_second_rotation_and_a_revocation_end_all_that_was_before(guarded: Guarded) -> None:
    """Of three tokens the first is over; deleting the key ends the others."""
    key_id, first = guarded.make("rotated twice", "read")
    later = [
        guarded.ask("POST", f"/keys/{key_id}/rotate", body).json["key"]
        for body in ({}, {"overlap_s": 604_800})
    ]
    guarded.made += later
    assert [guarded.status(token) for token in (first, *later)] == [401, 200, 200]
    assert guarded.ask("DELETE", f"/keys/{key_id}").status == 204
    wait_until(lambda: guarded.status(later[0]) == guarded.status(later[1]) == 401, "the end")


def test_a_rotation_without_an_overlap_ends_the_old_token(guarded: Guarded) -> None:
    """This is for one that leaked."""
    key_id, old = guarded.make("leaked", "read")

    def rotate() -> None:
        answer = guarded.ask("POST", f"/keys/{key_id}/rotate", {"overlap_s": 0})
        guarded.made.append(answer.json["key"])
        assert guarded.status(answer.json["key"]) == 200

    assert refused_within_a_second(guarded, old, rotate) == {401}


@pytest.mark.parametrize("overlap_s", [-1, 604_801, "1", None])
def test_an_overlap_is_a_week_at_most(overlap_s: object, guarded: Guarded) -> None:
    """A key that is to be replaced is not to stay."""
    answer = guarded.ask("POST", "/keys/1/rotate", {"overlap_s": overlap_s})
    assert answer.status == 422
    assert answer.json["errors"][0]["pointer"] == "/overlap_s"


def test_an_unknown_key_is_not_rotated(guarded: Guarded) -> None:
    """It is a 404 like any other."""
    assert guarded.ask("POST", f"/keys/{2**62}/rotate", {}).status == 404


def test_every_answer_has_the_headers_for_browsers(guarded: Guarded) -> None:
    """Whatever the answer is; what was read may be kept by its reader, what was written not."""
    answers = {
        "read": guarded.ask("GET", "/agents/1"),
        "none": guarded.ask("GET", "/nowhere"),
        "no key": guarded.running.get("/agents"),
        "no method": guarded.ask("PUT", "/agents"),
        "written": guarded.ask("POST", "/keys", {}),
        "health": guarded.running.get("/healthz"),
    }
    unchanged = {"If-None-Match": answers["read"].headers["ETag"]}
    answers["unchanged"] = guarded.ask("GET", "/agents/1", **unchanged)
    assert answers["unchanged"].status == 304
    for what, answer in answers.items():
        assert answer.headers["X-Content-Type-Options"] == "nosniff", what
        assert answer.headers["Referrer-Policy"] == "no-referrer", what
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"], what
        is_read = what not in ("written", "no method")
        kept = "private, no-cache" if is_read else "no-store"
        assert answer.headers["Cache-Control"] == kept, what
        assert answer.headers["Server"] == "gunicorn", what
        assert not [name for name in answer.headers if name.startswith("Access-Control")], what
    assert guarded.running.get("/readyz").headers["Cache-Control"] == "no-store"  # its own


def test_pages_of_known_origins_may_read(environ: dict[str, str]) -> None:
    """A preflight is answered, and the answer shared, for these origins and for no others."""
    mine, other = {"Origin": "https://app.example"}, {"Origin": "https://evil.example"}
    preflight = {
        "Access-Control-Request-Method": "PATCH",
        "Access-Control-Request-Headers": "authorization,if-match",
    }
    more = {"CORS_ORIGINS": "https://app.example,http://localhost:5173", "WEB_CONCURRENCY": "1"}
    with service({**environ, **more}) as running:
        answer = running.ask("OPTIONS", "/agents/1", headers={**mine, **preflight})
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert "PATCH" in answer.headers["Access-Control-Allow-Methods"]
        assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
        answer = running.get("/agents", headers=mine)
        assert answer.status == 401  # a page gets the error as well
        assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert "ETag" in answer.headers["Access-Control-Expose-Headers"]
        for headers in (other, {**other, **preflight}, {}):
            answer = running.ask("OPTIONS" if preflight.items() <= headers.items() else "GET",
                                 "/agents", headers=headers)  # fmt: skip
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert answer.headers["Vary"] == "Origin"


def test_a_limit_is_each_keys_own(environ: dict[str, str]) -> None:
    """The third of two is a 429 that says when to come again; another key has its own."""
    one, other = (make_key(environ, name, "read") for name in ("limited", "limited too"))
    more = {"RATE_LIMIT": "2/hour", "WEB_CONCURRENCY": "1"}
    with service({**environ, **more}) as running:
        answers = [running.get("/agents", headers=bearer(one)) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert [answer.headers["RateLimit"].split(";")[1] for answer in answers] == [
            "r=1", "r=0", "r=0",
        ]  # fmt: skip
        last = answers[-1]
        assert last.headers["RateLimit-Policy"] == '"2 per 1 hour";q=2;w=3600'
        assert 3_500 < int(last.headers["Retry-After"]) <= 3_600
        assert last.json["code"] == "too_many_requests"
        assert running.get("/agents", headers=bearer(other)).status == 200
        assert running.get("/healthz").status == 200


@in_the_long_form
def test_without_keys_a_limit_is_each_addresss_own(databases: Databases) -> None:
    """The limit counts the requests of each client address."""
    more = {"RATE_LIMIT": "2/hour", "WEB_CONCURRENCY": "1"}
    with service({**databases.environ, **more}) as running:
        assert [running.get("/agents").status for _ in range(3)] == [200, 200, 429]
        with socket.create_connection(
            ("127.0.0.1", running.port), 10, source_address=("127.0.0.2", 0)
        ) as elsewhere:
            elsewhere.sendall(b"GET /agents HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert elsewhere.recv(1_000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("name", "value"),
    [("AUTH", "perhaps"), ("RATE_LIMIT", "often"), ("CORS_ORIGINS", "app.example")],
)
def test_a_bad_setting_is_reported_in_one_line(
    environ: dict[str, str], name: str, value: str
) -> None:
    """It names the variable."""
    with service({**environ, name: value}, wait=False) as running:
        assert running.process.wait(timeout=60) != 0
        lines = running.log.splitlines()
    assert [line for line in lines if line.startswith(f"greenline: {name}: '{value}' is no")]


@pytest.fixture
def fresh(databases: Databases, empty_database: str) -> dict[str, str]:
    """The settings of a service whose database has the schema and no key."""
    with closing(psycopg2.connect(empty_database)) as conn:
        schema.upgrade(conn)
    more = {"DATABASE_URL": empty_database, "AUTH": "on", "WEB_CONCURRENCY": "1"}
    return {**databases.environ, **more}


def test_a_start_without_a_first_key_is_refused(fresh: dict[str, str]) -> None:
    """One line says what to type; what it says is right, and an expired key does not count."""
    make_key(fresh, "expired", "read")
    execute(fresh["DATABASE_URL"], "update api_keys set expires_at = now()")
    with service(fresh, wait=False) as running:
        assert running.process.wait(timeout=60) != 0
        assert [line for line in running.log.splitlines() if "AUTH" in line] == [REFUSAL]
        assert "Traceback" not in running.log
    command = shlex.split(REFUSAL.partition(" type ")[2].partition(", or ")[0])
    token = run(command, fresh).stdout.strip()
    with service(fresh) as running:
        assert running.get("/agents", headers=bearer(token)).status == 200
        assert "AUTH" not in running.log


def test_auth_off_is_said_aloud(fresh: dict[str, str]) -> None:
    """It starts without a key, with a warning, and asks for none."""
    with service({**fresh, "AUTH": "off"}) as running:
        assert "WARNING] app.readiness: AUTH=off" in running.log
        assert running.get("/agents").status == 200


@in_the_long_form
def test_a_service_that_could_not_ask_waits_for_a_first_key(
    databases: Databases, fresh: dict[str, str]
) -> None:
    """With Postgres away it comes up; then it says what is missing, until it is there."""
    with ExitStack() as stack:
        front = stack.enter_context(behind_proxies(databases))
        front.postgres.refuse()
        its = urlsplit(front.environ["DATABASE_URL"])._replace(
            path=urlsplit(fresh["DATABASE_URL"]).path
        )
        environ = {**front.environ, "DATABASE_URL": its.geturl(), "AUTH": "on"}
        running = stack.enter_context(service(environ, wait=False))
        wait_until(running.is_alive, "the service to be alive")
        assert "not known whether there is an API key" in running.log
        front.pass_on()
        wait_until(lambda: "there is no API key" in running.log, "it to say what is missing")
        make_key(fresh, "first", "read")
        wait_until(running.is_ready, "it to be ready")
        execute(fresh["DATABASE_URL"], "delete from api_keys")
        time.sleep(LIMIT_S)
        assert running.is_ready()  # a service whose last key went is no broken one


@pytest.fixture(scope="module")
def front(databases: Databases) -> Iterator[Front]:
    """The proxies of one service."""
    with behind_proxies(databases) as front:
        yield front


@pytest.fixture(scope="module")
def module_through(front: Front, environ: dict[str, str]) -> Iterator[Guarded]:
    """One worker behind the proxies, and a key that may only write: what it asks is a 403."""
    token = make_key(environ, "through", "write")
    with service({**front.environ, "AUTH": "on", "REQUEST_TIMEOUT": "3"}) as running:
        yield Guarded(running, token)


@pytest.fixture
def through(module_through: Guarded, front: Front) -> Iterator[Guarded]:
    """It, with a connection to Postgres that has been used."""
    wait_until(lambda: module_through.status(module_through.admin) == 403, "Postgres")
    yield module_through
    front.pass_on()


def test_most_requests_cost_no_question(through: Guarded, front: Front) -> None:
    """A busy key is asked for once a second, and one in no form of a key never."""
    before, began = front.postgres.asks, time.monotonic()
    for _ in range(100):
        assert through.status(through.admin) == 403
        assert through.status("nonsense") == 401
    took_s = time.monotonic() - began
    assert front.postgres.asks - before <= took_s / LIMIT_S + 1


def test_a_burst_of_an_unknown_key_is_one_question(through: Guarded, front: Front) -> None:
    """While it is asked for, all the others wait for the same answer."""
    token = tokens.make()
    head = f"GET /agents HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token.text}\r\n\r\n"
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", through.running.port), 10))
            for _ in range(50)
        ]
        front.postgres.hold(token.prefix.encode())
        before = front.postgres.asks
        for client in clients:
            client.sendall(head.encode())
        wait_until(lambda: front.postgres.held, "the question")
        assert through.status("nonsense") == 401  # it came last, and all were read before it
        assert front.postgres.held == 1
        front.postgres.pass_on()
        for client in clients:
            assert client.recv(4_096).startswith(b"HTTP/1.1 401")
        assert front.postgres.asks - before == 1


def test_while_postgres_is_away_no_client_gets_that_the_key_is_wrong(
    through: Guarded, front: Front
) -> None:
    """What is remembered works its second out; then it is 503, and 504 from one that is deaf."""
    asked = time.monotonic()
    assert through.status(through.admin) == 403
    front.postgres.refuse()
    status = through.status(through.admin)
    assert status == 403 or time.monotonic() - asked > LIMIT_S
    wait_until(lambda: through.status(through.admin) != 403, "the second to be over")
    answer = through.running.get("/agents", headers=bearer(through.admin))
    assert (answer.status, answer.json["code"]) == (503, "store_down")
    assert int(answer.headers["Retry-After"]) > 0
    assert through.status("nonsense") == 401
    front.pass_on()
    wait_until(lambda: through.status(through.admin) == 403, "Postgres to be back")
    time.sleep(LIMIT_S)
    front.postgres.deafen()
    with ThreadPoolExecutor(5) as clients:
        began = time.monotonic()
        asking = [clients.submit(through.status, through.admin) for _ in range(5)]
        assert {one.result() for one in asking} <= {503, 504}
        assert time.monotonic() - began < 3 + SLACK_S
    assert through.admin[-43:] not in through.running.log


def test_a_broken_store_tells_no_secret(fresh: dict[str, str]) -> None:
    """Without its table every request is a 500, whose log has no token and whose body no SQL."""
    token = make_key(fresh, "first", *SCOPES)
    with service(fresh) as running:
        assert running.get("/agents", headers=bearer(token)).status == 200
        execute(fresh["DATABASE_URL"], "alter table api_keys rename to lost")
        time.sleep(LIMIT_S)
        answer = running.get("/agents", headers=bearer(token))
        assert answer.status == 500
        for word in (b"api_keys", b"select", b"Traceback", b"psycopg2", token.encode()):
            assert word not in answer.body
        wait_until(lambda: "UndefinedTable" in running.log, "the log")
        assert token[-43:] not in running.log
        assert tokens.digest(token).hex() not in running.log


def execute(url: str, statement: str) -> None:
    with closing(psycopg2.connect(url)) as conn, conn, conn.cursor() as cursor:
        cursor.execute(statement)


def test_the_commands_make_list_and_revoke(fresh: dict[str, str]) -> None:
    """The token is alone on stdout; a list shows none; a name is free when its key is gone."""
    make = ["flask", "keys", "create", "--name", "ci", "--scopes"]
    made = run([*make, "read,write", "--expires", "30"], fresh)
    assert tokens.FORM.fullmatch(made.stdout.strip())
    assert made.stdout.strip() not in made.stderr
    taken = run([*make, "read"], fresh, check=False)
    assert (taken.returncode, taken.stdout) == (1, "")
    assert "there is a key named ci" in taken.stderr
    replaced = run([*make, "read", "--replace"], fresh).stdout
    run(["flask", "keys", "create", "--name", "other", "--scopes", "admin"], fresh)
    listed = run(["flask", "keys", "list"], fresh).stdout
    assert [line.split()[1] for line in listed.splitlines()] == ["name", "ci", "other"]
    assert replaced[:16] in listed
    assert replaced.strip()[-43:] not in listed
    key_id = listed.splitlines()[2].split()[0]
    assert run(["flask", "keys", "revoke", key_id], fresh).stdout == f"key {key_id} is revoked\n"
    assert run(["flask", "keys", "revoke", "ci"], fresh).returncode == 0
    gone = run(["flask", "keys", "revoke", "ci"], fresh, check=False)
    assert (gone.returncode, gone.stderr) == (1, "Error: there is no key ci\n")
    for number in ("0", "9" * 20, "9" * 5_000):
        beyond = run(["flask", "keys", "revoke", number], fresh, check=False)
        assert (beyond.returncode, beyond.stderr) == (1, f"Error: there is no key {number}\n")
    assert len(run(["flask", "keys", "list"], fresh).stdout.splitlines()) == 1


@pytest.mark.parametrize("scopes", ["", "read,root", "read,read"])
def test_a_wrong_scope_is_wrong_use(scopes: str, fresh: dict[str, str]) -> None:
    """There is an error, and no key is made."""
    make = ["flask", "keys", "create", "--name", "x", "--scopes", scopes]
    done = run(make, fresh, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "scope" in done.stderr


def test_a_command_says_that_the_schema_is_behind(
    databases: Databases, empty_database: str
) -> None:
    """As the service does, with what to type."""
    environ = {**databases.environ, "DATABASE_URL": empty_database}
    done = run(["flask", "keys", "list"], environ, check=False)
    assert done.returncode == 1
    assert "run flask db upgrade" in done.stderr

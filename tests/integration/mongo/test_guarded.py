"""greenline.mongo, and the service, on a MongoDB that asks for a password and speaks TLS."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import pytest
from pymongo import MongoClient

from greenline.errors import ConfigError, GreenlineError, StoreDown, StoreError
from greenline.hub import deadline
from greenline.mongo.client import Mongo
from tests.helpers import guarded as guarding
from tests.helpers.certificate import certify
from tests.helpers.forms import in_the_long_form, some
from tests.helpers.guarded import PASSWORD, Guarded, guarded
from tests.helpers.proxy import Proxy
from tests.helpers.support import OPS_TOKEN, Databases, Service, service, wait_until

Open = Callable[..., Mongo]

pytestmark = guarding.marks
LARGE_BYTES = 1_000_000
WRONG = "wr0ng"
SOON = "serverSelectionTimeoutMS=500"  # what never works need not be tried for long
SLACK_S = 1.0


on_both_kinds = pytest.mark.parametrize(
    "server", ["replica_set", "standalone"], ids=["replica set", "standalone"], indirect=True
)


@pytest.fixture(scope="module")
def replica_set(folder: Path) -> Iterator[Guarded]:
    """A replica set for this module."""
    with guarded(folder / "guarded") as running:
        yield running


@pytest.fixture(scope="module")
def standalone(folder: Path) -> Iterator[Guarded]:
    """A server that is no replica set, for this module."""
    with guarded(folder / "guarded standalone", standalone=True) as running:
        yield running


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Guarded:
    """The server of the test: ``on_both_kinds`` runs it on either."""
    running: Guarded = request.getfixturevalue(getattr(request, "param", "replica_set"))
    return running


@pytest.fixture
def open_as(server: Guarded) -> Iterator[Open]:
    """Makes clients of a user, with *options* in the URI; closes them at the end."""
    with ExitStack() as stack:

        def make(user: str, *options: str, **how: Any) -> Mongo:
            uri = server.uri(user, *options, **how)
            client = Mongo(uri, size_for=lambda _: 5, timeout_s=5)
            stack.callback(client.close)
            return client

        yield make


def error_of(work: Callable[[], object]) -> GreenlineError:
    """Return the error of *work*: one line, without a password and the driver's details."""
    with pytest.raises(GreenlineError) as caught:
        work()
    said = str(caught.value)
    assert said.startswith("MongoDB: ")
    for absent in ("\n", PASSWORD, "s3cret", WRONG, "Topology", "configured", "full error"):
        assert absent not in said
    return caught.value


def find(client: Mongo) -> Any:
    """Read a document without the repetitions of ``read``."""
    with client.database() as database:
        return database.c.find_one({"_id": 1})


def insert(client: Mongo) -> None:
    client.insert("c", {"_id": 2})


@pytest.mark.parametrize("mechanism", some(guarding.MECHANISMS))
def test_a_user_reads_and_writes_over_tls(server: Guarded, open_as: Open, mechanism: str) -> None:
    """Also in a transaction, several at once, and what does not go into one piece."""
    client = open_as("writer", *server.tls, f"authMechanism={mechanism}")
    client.check()
    assert client.capabilities().has_transactions
    documents = [{"_id": f"{mechanism}{number}", "data": "x" * LARGE_BYTES} for number in range(4)]
    client.insert_all("large", documents[:2])
    inserting = [gevent.spawn(client.insert, "large", each) for each in documents[2:]]
    gevent.joinall(inserting, timeout=40, raise_error=True)
    ids = [each["_id"] for each in documents]
    found = client.read(lambda database: list(database.large.find({"_id": {"$in": ids}})))
    assert sorted(found, key=lambda each: str(each["_id"])) == documents


@pytest.mark.parametrize(
    ("user", "password"), [("writer", WRONG), ("stranger", PASSWORD)], ids=["password", "user"]
)
def test_wrong_credentials_are_an_outage_that_is_named(
    server: Guarded, open_as: Open, user: str, password: str
) -> None:
    """As those of Postgres are: nothing works until somebody mends them."""
    client = open_as(user, *server.tls, password=password)
    wait_for_outage(client, "authentication failed")
    for work in (lambda: find(client), lambda: insert(client)):
        error = error_of(work)
        assert type(error) is StoreDown
        assert "authentication failed" in str(error).lower()


@on_both_kinds
@pytest.mark.parametrize("user", ["", "nobody"], ids=["no credentials", "no rights"])
def test_a_user_without_rights_gets_an_error(server: Guarded, open_as: Open, user: str) -> None:
    """And nothing is concluded from it: the server's transactions are not known yet."""
    client = open_as(user, *server.tls)
    client.check()
    for work in (client.capabilities, lambda: find(client), lambda: insert(client)):
        error = error_of(work)
        assert type(error) is StoreError
        assert "authori" in str(error) or "requires authentication" in str(error)


@on_both_kinds
def test_who_may_only_read_reads(server: Guarded, open_as: Open) -> None:
    """The error says what the user may not do."""
    client = open_as("reader", *server.tls)
    client.capabilities()
    assert find(client) == {"_id": 1}
    assert "not authorized on d" in str(error_of(lambda: insert(client)))


def test_without_tls_it_is_an_outage(open_as: Open) -> None:
    """The server hangs up on who speaks plainly."""
    client = open_as("writer", SOON)
    assert type(error_of(client.check)) is StoreDown
    assert type(error_of(lambda: find(client))) is StoreDown


def test_another_authority_is_refused(server: Guarded, open_as: Open, tmp_path: Path) -> None:
    """The certificate is checked, and that is said."""
    certify(tmp_path)
    for trusted in ((), (f"tlsCAFile={tmp_path / 'certificate.pem'}",)):
        client = open_as("writer", SOON, "tls=true", *trusted)
        wait_for_outage(client, "certificate verify failed")


def test_another_host_name_is_refused(server: Guarded, open_as: Open) -> None:
    """The certificate is of localhost alone."""
    client = open_as("writer", *server.tls, SOON, at=f"127.0.0.1:{server.port}")
    wait_for_outage(client, "not valid for '127.0.0.1'")


def wait_for_outage(client: Mongo, reason: str) -> None:
    """Check until the outage has *reason*: a handshake on a busy machine may take longer."""

    def is_said() -> bool:
        error = error_of(client.check)
        assert type(error) is StoreDown
        return reason in str(error).lower()

    wait_until(is_said, reason)


@pytest.mark.parametrize("content", [None, "this is none"], ids=["missing file", "no certificate"])
def test_an_authority_that_cannot_be_read_is_refused_at_once(
    open_as: Open, tmp_path: Path, content: str | None
) -> None:
    """As every other wrong option."""
    path = tmp_path / "authority.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        open_as("writer", "tls=true", f"tlsCAFile={path}")
    assert PASSWORD not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_slow_handshake_blocks_no_other_greenlet(server: Guarded, open_as: Open) -> None:
    """Other greenlets run meanwhile; it ends in time, and works when the server wakes up."""
    with Proxy(("127.0.0.1", server.port)) as proxy:
        at = f"localhost:{proxy.port}"
        client = open_as("writer", *server.tls, "connectTimeoutMS=3000", at=at)
        proxy.deafen()
        asking = gevent.spawn(_outcome, client)
        wait_until(lambda: proxy.accepted, "the handshake to begin")
        started, longest_s = monotonic(), 0.0
        while not asking.dead:
            before = monotonic()
            gevent.sleep(0.001)
            longest_s = max(longest_s, monotonic() - before)
        assert type(asking.value) is StoreDown
        assert 0.5 < monotonic() - started < 5 + SLACK_S
        assert longest_s < 1.5  # half of what a handshake would block them
        proxy.pass_on()
        assert client.read(lambda database: database.c.find_one({"_id": 1})) == {"_id": 1}


def _outcome(client: Mongo) -> GreenlineError | None:
    try:
        with deadline.limit(20):
            find(client)
    except GreenlineError as error:
        return error
    return None


def test_the_service_runs_on_it(server: Guarded, databases: Databases) -> None:
    """It writes and reads; the server is killed, is back, and the service is not restarted."""
    with (
        Proxy(("127.0.0.1", server.port)) as proxy,
        _service(databases, server.uri("writer", *server.tls, at=f"localhost:{proxy.port}")) as api,
    ):
        state = {"task_id": 1, "agent_id": 1, "data": {"x": 1}}
        made = api.ask("POST", "/states", state)
        assert made.status == 201, made.body
        proxy.refuse()
        server.kill()
        wait_until(lambda: api.get("/readyz").status == 503, "the outage to be noticed")
        assert api.get(made.headers["Location"]).status == 503
        server.start()
        proxy.target = ("127.0.0.1", server.port)
        proxy.pass_on()
        wait_until(api.is_ready, "green again")
        again = api.get(made.headers["Location"])
        assert (again.status, again.body) == (200, made.body)


@in_the_long_form
def test_a_service_with_a_wrong_password_is_not_ready(
    server: Guarded, databases: Databases
) -> None:
    """The log says why, without the password; clients get that the database is away."""
    uri = server.uri("writer", *server.tls, password=WRONG)
    with _service(databases, uri, wait=False) as api:
        _expect_not_ready(api, "MongoDB: authentication failed")


@on_both_kinds
def test_a_service_without_rights_is_not_ready_until_it_has_them(
    server: Guarded, databases: Databases
) -> None:
    """The log says what is missing; the indexes are made when the rights are granted."""
    with (
        MongoClient[Any](server.uri("admin", *server.tls)) as admin,
        Proxy(("127.0.0.1", server.port)) as proxy,
        _service(
            databases,
            server.uri("newcomer", *server.tls, at=f"localhost:{proxy.port}"),
            wait=False,
        ) as api,
    ):
        _expect_not_ready(api, "MongoDB: not authorized on d")
        admin.d.command("grantRolesToUser", "newcomer", roles=["readWrite"])
        proxy.cut()  # SecantusDB grants nothing to a connection that is open
        wait_until(api.is_ready, "the service to be ready")
        assert "cannot be made" not in api.log
    with MongoClient[Any](server.uri("writer", *server.tls)) as client:
        assert client.d.states.index_information()["task_id_agent_id"]["unique"] is True


def _expect_not_ready(api: Service, reason: str) -> None:
    wait_until(lambda: f"not ready: mongodb: {reason}" in api.log, "the reason in the log")
    assert api.get("/readyz").status == 503
    assert api.get("/states").status in (500, 503)
    assert api.get("/books/1").status == 200
    for secret in (WRONG, PASSWORD, "s3cret"):
        assert secret not in api.log


def _service(databases: Databases, uri: str, **how: Any) -> Any:
    environ = {**databases.environ, "MONGODB_URI": uri, "WEB_CONCURRENCY": "1"}
    return service({**environ, "OPS_TOKEN": OPS_TOKEN}, **how)

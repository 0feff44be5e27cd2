"""Traces of OpenTelemetry: each request's spans, sent over OTLP, whatever happens to the worker."""

import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from greenline.lifecycle.drain import SEND_S
from tests.e2e.hosting import at_once, hosting
from tests.helpers.forms import in_the_long_form, some
from tests.helpers.otlp import Receiver, Span, receiving
from tests.helpers.pages import write_example
from tests.helpers.support import CHECKOUT, Databases, run, service, wait_until

APP, ITSELF = "tests.e2e.tracing:app", "tests.e2e.tracing_itself:app"
SERVER, CLIENT = 2, 3  # OTLP's numbers of the kinds of spans
SLACK_S = 5.0


def parents(count: int) -> list[tuple[str, str]]:
    """Return ids of traces, and of spans that are the parents of requests."""
    return [(os.urandom(16).hex(), os.urandom(8).hex()) for _ in range(count)]


def headers(parent: tuple[str, str], *, sampled: bool = True) -> dict[str, str]:
    return {"traceparent": f"00-{parent[0]}-{parent[1]}-{int(sampled):02x}"}


def of_request(receiver: Receiver, trace: str, count: int) -> list[Span]:
    """Return the spans of a trace, when *count* of them have arrived."""
    return wait_until(
        lambda: found if len(found := receiver.by_trace()[trace]) >= count else None, "the spans"
    )


def _has_requests(receiver: Receiver, count: int) -> bool:
    return len([each for each in receiver.spans if each.kind == SERVER]) >= count


@pytest.mark.parametrize(
    ("pooled", "workers", "count"), [("", 1, 40), ("1", 4, 200)], ids=["alone", "pooled"]
)
def test_each_request_is_a_tree(
    pooled: str, workers: int, count: int, empty_database: str, empty_mongo: str
) -> None:
    """Of all requests at once: statements and commands are below the right request."""
    urls = {"DATABASE_URL": empty_database, "MONGODB_URI": empty_mongo}
    more = {"GREENLINE_POOL": pooled, "POSTGRES_POOL_SIZE": "4"} if pooled else {}
    asked = parents(count)
    with receiving() as receiver:
        started = {**urls, **more, **receiver.environ}
        with hosting(APP, "-w", str(workers), **started) as running:

            def ask(number: int) -> int:
                path = f"/books/{number}?secret"
                return running.get(path, headers=headers(asked[number])).status

            with ThreadPoolExecutor(count) as clients:
                assert set(clients.map(ask, range(count))) == {200}, running.log
            pids = set(running.workers())
            # Before the stop, which has seconds to send. The span of a request is its last one.
            wait_until(lambda: _has_requests(receiver, count), "the spans")
        traces = receiver.by_trace()
        processes = set()
        for number, (trace, parent) in enumerate(asked):
            (request,) = [each for each in traces[trace] if each.kind == SERVER]
            assert (request.name, request.parent_id) == ("GET /books/<int:number>", parent)
            assert request.attributes.items() >= {
                "http.route": "/books/<int:number>",
                "http.request.method": "GET",
                "http.response.status_code": 200,
                "url.path": f"/books/{number}",
            }.items()  # fmt: skip
            inner = [each for each in traces[trace] if each is not request]
            assert {each.parent_id for each in inner} == {request.span_id}
            assert all(
                request.start_ns <= each.start_ns <= each.end_ns <= request.end_ns for each in inner
            )
            sent = [each for each in inner if each.kind == CLIENT]
            sent.sort(key=lambda each: each.start_ns)
            texts = [each.attributes.get("db.query.text", each.name) for each in sent]
            # SQLAlchemy asks for some settings when it connects.
            assert "select %s as own from pg_sleep(?)" in texts
            assert "select ? + ?, ? as   word, %(own)s" in texts
            assert "commit" in texts
            assert texts[-1] == "find books"
            processes.add(request.resource["process.pid"])
        assert request.resource["service.name"] == "shop"
        assert processes <= pids
        assert receiver.named("wait for a connection") or not pooled
        assert "secret" not in repr(receiver.spans)


@in_the_long_form
def test_a_trace_goes_on_in_the_next_service() -> None:
    """With the parent's decision: what the sender does not sample, no span is made of."""
    sampled, not_sampled = parents(2)
    with receiving() as receiver, hosting(APP, **receiver.environ) as running:
        path = f"/calls?url=http://127.0.0.1:{running.port}/traceparent"
        answer = running.get(path, headers=headers(sampled)).body.decode()
        (inner,) = [
            each for each in of_request(receiver, sampled[0], 2) if each.name == "GET /traceparent"
        ]
        (outer,) = receiver.named("GET /calls")
        assert answer == f"00-{sampled[0]}-{outer.span_id}-01"
        assert (outer.parent_id, inner.parent_id) == (sampled[1], outer.span_id)
        answer = running.get(path, headers=headers(not_sampled, sampled=False)).body.decode()
        assert (answer[:36], answer[-3:]) == (f"00-{not_sampled[0]}-", "-00")
        # A handler is used again, and its next request has another trace.
        assert running.get("/traceparent").body == b""
    assert not_sampled[0] not in receiver.by_trace()
    assert not [each for each in receiver.named("GET /traceparent") if each.parent_id == ""][1:]


@pytest.mark.parametrize("is_traced", some([True, False]), ids=some(["traced", "not traced"]))
def test_an_application_passes_the_trace_on_itself(is_traced: bool, tmp_path: Path) -> None:
    """As docs/watch.md has it: its span is the parent, or the one that was its own parent."""
    write_example("docs/watch.md", "orders.py", tmp_path)
    (parent,) = parents(1)
    with receiving() as receiver, hosting("tests.e2e.untraced:app") as stock:
        given = {
            "PYTHONPATH": str(tmp_path), "STOCK_URL": f"http://127.0.0.1:{stock.port}/",
            **(receiver.environ if is_traced else {}),
        }  # fmt: skip
        with hosting("orders:app", **given) as running:
            sent = {**headers(parent), "tracestate": "vendor=1"}
            answer = running.get("/stock", headers=sent).json
            if is_traced:
                (span,) = wait_until(lambda: receiver.named("GET /stock"), "the span")
                sent["traceparent"] = headers((parent[0], span.span_id))["traceparent"]
            # The other service has not been asked by OpenTelemetry: it passes on what it has got.
            assert answer == [sent["traceparent"], sent, []]


def test_an_error_is_shown_without_its_values(empty_database: str) -> None:
    """By its SQLSTATE and its status: Postgres quotes what it has been given."""
    (parent,) = parents(1)
    with receiving() as receiver:
        with hosting(APP, DATABASE_URL=empty_database, **receiver.environ) as running:
            assert running.get("/fails", headers=headers(parent)).status == 500
        request, *_, statement = sorted(
            receiver.by_trace()[parent[0]], key=lambda each: each.start_ns
        )
        assert (statement.name, statement.is_error) == ("SELECT", True)
        assert statement.attributes["db.response.status_code"] == "22P02"
        assert statement.attributes["db.query.text"] == "select ?::int"
        assert (request.is_error, request.attributes["http.response.status_code"]) == (True, 500)
        assert "secret" not in repr(receiver.spans)


@pytest.mark.parametrize(
    ("target", "preload"),
    some([(APP, []), (APP, ["--preload"]), (ITSELF, ["--preload"])]),
    ids=some(["loaded", "preloaded", "its-own-preloaded"]),
)
def test_a_fork_in_a_request(
    target: str, preload: list[str], empty_mongo: str, empty_database: str
) -> None:
    """
    It ends, and no request is answered by the child; the spans of all arrive, at one provider.

    OpenTelemetry starts threads after a fork, and waits for them.
    """
    urls = {"DATABASE_URL": empty_database, "MONGODB_URI": empty_mongo}
    with receiving() as receiver:
        started = {**urls, **receiver.environ}
        with hosting(target, *preload, **started) as running, ThreadPoolExecutor(30) as clients:
            paths = ["/forks/os", "/forks/subprocess", "/books/1"] * 10
            assert {each.status for each in clients.map(running.get, paths)} == {200}, running.log
            assert "started before the standard library was patched" not in running.log
            wait_until(lambda: _has_requests(receiver, len(paths)), "the spans")
        for name in ("GET /forks/<how>", "GET /books/<int:number>"):
            found = receiver.named(name)
            assert len(found) == {"GET /forks/<how>": 20}.get(name, 10)
        of = {"itself"} if target == ITSELF else {"shop"}
        assert {each.resource["service.name"] for each in receiver.spans} == of
        assert len(receiver.named("find books")) == 10


@pytest.mark.parametrize("is_deaf", some([True, False]), ids=some(["deaf", "down"]))
def test_a_receiver_that_does_not_answer(is_deaf: bool) -> None:
    """The requests go on, the hub is not blocked, and the worker stops within its bound."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if is_deaf:
            silent.listen(100)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        given = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with hosting(APP, OTEL_BSP_MAX_QUEUE_SIZE="64", **given) as running:
            for _ in range(5):
                answers, _ = at_once(running, "/traceparent", 40)
                assert {each.status for each in answers} == {200}
            assert "Queue" in running.log  # it is full, and no request waits for room
            begun_s = time.monotonic()
            running.stop()
            assert time.monotonic() - begun_s < SEND_S + SLACK_S
            assert "the hub was blocked" not in running.log, running.log


def test_a_reload_loses_no_span() -> None:
    """The workers that end send theirs first."""
    with receiving() as receiver, hosting(APP, **receiver.environ) as running:
        (before,) = running.workers()
        for _ in range(20):
            assert running.get("/traceparent").status == 200
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: before not in running.workers() and running.workers(), "the new one")
        for _ in range(20):
            assert running.get("/traceparent").status == 200
        running.stop()
        found = receiver.named("GET /traceparent")
        assert len(found) == 40
        assert len({each.resource["process.pid"] for each in found}) == 2


@in_the_long_form
def test_slow_requests_are_logged_as_well(empty_database: str, empty_mongo: str) -> None:
    """The statement and the command are in the log's line and in spans, once each."""
    urls = {"URL": empty_database, "URI": empty_mongo, "GREENLINE_SLOW_MS": "1"}
    with receiving() as receiver:
        with hosting("tests.e2e.watched_databases:app", **urls, **receiver.environ) as running:
            assert running.get("/postgres/books?s=0.3").status == 200
            assert running.get("/mongo").status == 200
            running.stop()
            log = running.log
    assert re.search(r"slow_report:\d+ \(SELECT pg_sleep\(%s\)\)", log), log
    assert re.search(r"mongodb \d+ ms 50 times in .*\(insert things\)", log), log
    assert len(receiver.named("SELECT")) == 1
    assert len(receiver.named("insert things")) == 50


@pytest.mark.parametrize(
    ("name", "value"),
    some(
        [
            ("OTEL_PROPAGATORS", "none-such"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "x"),
            ("OTEL_TRACES_EXPORTER", "none-such"),
        ]
    ),
)
def test_a_wrong_value_leaves_the_service_alone(
    name: str, value: str, empty_database: str, empty_mongo: str
) -> None:
    """A line says that there are no traces, and why."""
    urls = {"URL": empty_database, "URI": empty_mongo}
    given = {**urls, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", name: value}
    with hosting("tests.e2e.watched_databases:app", **given) as running:
        before = running.workers()
        for path in ("/postgres/books?s=0", "/mongo"):
            assert running.get(path).status == 200
        assert "OTEL_*: no traces: " in running.log
        assert running.workers() == before
        assert running.stop() == 0


def test_nothing_is_imported_where_it_is_off() -> None:
    """The application finds the header all the same, and passes it on as it is."""
    (parent,) = parents(1)
    given = {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    with hosting("tests.e2e.untraced:app", **given) as running:
        sent = {**headers(parent), "tracestate": "vendor=1"}
        assert running.get("/", headers=sent).json == [sent["traceparent"], sent, []]
        invalid = {**sent, "traceparent": "00-1-2-01"}
        assert running.get("/", headers=invalid).json == ["00-1-2-01", {}, []]


def test_django_is_traced(empty_database: str) -> None:
    """Its route, and its statements on a pooled connection."""
    (parent,) = parents(1)
    given = {"DATABASE_URL": empty_database, "PYTHONPATH": str(CHECKOUT / "examples")}
    run(["python", "examples/django_catalogue.py"], given)
    with receiving() as receiver:
        started = {**given, **receiver.environ, "GREENLINE_POOL": "1"}
        with hosting("django_catalogue:application", **started) as running:
            assert running.get("/books", headers=headers(parent)).status == 200
        request, *statements = sorted(
            receiver.by_trace()[parent[0]], key=lambda each: each.start_ns
        )
        assert (request.name, request.attributes["url.path"]) == ("GET /books", "/books")
        assert {each.parent_id for each in statements} == {request.span_id}
        texts = [each.attributes.get("db.query.text", "") for each in statements]
        assert any(each.startswith('SELECT "catalogue_book"."id"') for each in texts)


def test_the_service_is_traced(databases: Databases) -> None:
    """Its statements have the names under which they are prepared."""
    parent, writing = parents(2)
    with receiving() as receiver:
        with service({**databases.environ, **receiver.environ}) as running:
            assert running.get("/books?limit=2", headers=headers(parent)).status == 200
            path, edit = f"/agents/{running.get('/agents').json['items'][0]['id']}", {"name": "new"}
            assert running.ask("PATCH", path, edit, headers=headers(writing)).status == 200
        found = {each.name: each for each in receiver.by_trace()[parent[0]]}
        assert found["GET /books"].parent_id == parent[1]
        name = next(name for name in found if name.startswith("EXECUTE "))
        assert found[name].parent_id == found["GET /books"].span_id
        names = {each.name for each in receiver.by_trace()[writing[0]]}
        # BEGIN is sent with the first statement, and is no statement of its own.
        assert names >= {"EXECUTE agents_lock_by_id", "EXECUTE agents_update_by_id", "COMMIT"}

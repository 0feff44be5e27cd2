"""What makes the comparison of the API's parts fair, and what makes its run count."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import api, load, mongodb, operations, products, report
from bench.lineup import MONGODB_POOL_SIZE, documents, with_keys
from bench.operations import Task
from bench.servers import ServerError
from bench.vegeta import Answer

URLS = ("postgresql://greenline@/greenline?host=/tmp/x", "mongodb://127.0.0.1:1/bench")
FIND = Task("find", 9, ["/a", "/b"], clients=(2,))
LENT = mongodb.Lent(URLS[1], "SecantusDB 0.7.0b3", None)
CSV = "0.500000,0.100000,200\n0.000000,0.300000,200\n0.900000,0.300000,503\n"


class Load:
    """Stands for the load generator: remembers what it was asked, at prepared speeds."""

    def __init__(self, **speeds: list[float]) -> None:
        self.speeds = {who: iter(each) for who, each in speeds.items()}
        self.runs: list[tuple[str, list[str], int]] = []
        self.broken: set[int] = set()
        self.cleared: list[int] = []  # before which runs

    def __call__(self, urls: list[str], count: int, clients: int, body: str | None) -> load.Run:
        who = urls[0].partition("/")[0]
        seconds = count / next(self.speeds[who])
        self.runs.append((who, urls, count))
        status = "503" if len(self.runs) - 1 in self.broken else "200"
        return load.Run([Answer(0.0, seconds, status)] * count, seconds)


class Named:
    """Stands for a started server; *answers* has what it says to each path."""

    process = None

    def __init__(self, name: str, answers: Mapping[str, tuple[int, bytes]] | None = None) -> None:
        self.url = name
        self.answers = dict(answers or {})
        self.posted: list[Any] = []
        self.status_made, self.location = 201, "/messages/1"

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        return self.answers[path]

    def status(self, path: str) -> int:
        return self.answers[path][0]

    def ask(
        self, method: str, path: str, headers: Any, body: str, timeout_s: float = 10
    ) -> tuple[int, str | None, bytes]:
        self.posted.append(json.loads(body))
        return self.status_made, self.location, b'{"id":1}'

    def rss_mb(self) -> float:
        return 50.0


@pytest.fixture
def found(tmp_path: Path) -> report.Report:
    """Return a report that writes nowhere else."""
    return report.Report("api", tmp_path)


def run_all(
    monkeypatch: pytest.MonkeyPatch, found: report.Report, fake: Load, rounds: int = 3
) -> None:
    monkeypatch.setattr(operations.load, "run", fake)
    servers: Any = {who: Named(who) for who in fake.speeds}
    operations.compete(
        found, servers, FIND, 2, rounds,
        clear=lambda: fake.cleared.append(len(fake.runs)), database=None, on="mongod 8",
    )  # fmt: skip


def test_loads_rows_are_read() -> None:
    """A run lasts from the first question to the last answer, whatever the order of its rows."""
    run = load.parse(CSV)
    assert [each.status for each in run.answers] == ["200", "200", "503"]
    assert run.seconds == pytest.approx(1.2)
    assert load.parse("").seconds == 0


@pytest.mark.parametrize("text", ["no such host", "1.0,2.0", "a,b,200", "1,2,3,4"])
def test_anything_but_loads_rows_is_refused(text: str) -> None:
    """What is not load's CSV is an error, not a run without answers."""
    with pytest.raises(load.LoadError, match="not load's CSV"):
        load.parse(text)


def test_runs_count_together() -> None:
    """Operations and seconds of all rounds add up; the speed is that of the 200s."""
    result = load.together([load.parse(CSV), load.parse(CSV)], clients=7)
    assert (result.asked, result.clients) == (6, 7)
    assert result.answers == {"200": 4, "503": 2}
    assert result.seconds == pytest.approx(2.4)
    assert result.req_s == pytest.approx(4 / 2.4, abs=0.01)
    assert result.p99_ms == pytest.approx(300)


def test_the_operations_are_divided_among_interleaved_rounds(
    monkeypatch: pytest.MonkeyPatch, found: report.Report
) -> None:
    """After the warm-up of all, each round asks everybody in turn a part of all paths."""
    fake = Load(greenline=[10] * 4, peer=[10] * 4)
    run_all(monkeypatch, found, fake)
    asked = [(who, count) for who, _, count in fake.runs]
    assert asked == [("greenline", 2), ("peer", 2)] + [("greenline", 3), ("peer", 3)] * 3
    assert fake.runs[0][1] == ["greenline/a", "greenline/b"]
    assert fake.cleared == list(range(2, 8))


@pytest.mark.parametrize(
    ("count", "rounds", "least", "expected"),
    [
        pytest.param(10, 3, 1, [3, 3, 4], id="all-of-them"),
        pytest.param(10, 1, 1, [10], id="one-round"),
        pytest.param(10, 3, 5, [5, 5, 5], id="one-a-client-at-least"),
    ],
)
def test_no_operation_is_lost_by_dividing(
    count: int, rounds: int, least: int, expected: list[int]
) -> None:
    """The rounds have all operations together, and each of them one a client or more."""
    assert operations.divided(count, rounds, least) == expected


def test_a_row_is_all_rounds_together_with_their_spread(
    monkeypatch: pytest.MonkeyPatch, found: report.Report
) -> None:
    """At 1, 3 and 2 a second, 9 operations take 5.5 seconds, and lie (3 - 1) / 2 apart."""
    fake = Load(greenline=[10, 1, 3, 2], peer=[10, 1, 1, 1])
    run_all(monkeypatch, found, fake)
    ours, its = found.rows
    assert (ours.who, ours.answers, ours.seconds, ours.spread) == (
        "greenline", {"200": 9}, 5.5, 1.0
    )  # fmt: skip
    assert (its.spread, its.more) == (0.0, {"on": "mongod 8", "cpu ms": 0.0})
    assert found.problems == []


def test_a_single_round_has_no_spread(
    monkeypatch: pytest.MonkeyPatch, found: report.Report
) -> None:
    """One round lies apart from none."""
    run_all(monkeypatch, found, Load(greenline=[10, 1]), rounds=1)
    assert found.rows[0].spread is None


def test_an_operation_that_fails_makes_the_run_invalid(
    monkeypatch: pytest.MonkeyPatch, found: report.Report
) -> None:
    """A server that answers anything but 200 in a round is reported, and keeps its row."""
    fake = Load(greenline=[10] * 4, peer=[10] * 4)
    fake.broken = {5}
    run_all(monkeypatch, found, fake)
    (problem,) = found.problems
    assert problem == "find peer 2 clients: answers {'200': 6, '503': 3}"
    assert len(found.rows) == 2


def test_no_server_is_measured_beside_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, found: report.Report
) -> None:
    """A server that fails before the rounds ends them: there is nothing to compare with."""
    fake = Load(greenline=[10] * 4, peer=[10] * 4)
    fake.broken = {1}
    run_all(monkeypatch, found, fake)
    assert (len(fake.runs), found.rows) == (2, [])
    assert "find peer 2 clients, before the rounds" in found.problems[0]


def test_processors_are_reported_for_each_operation(
    monkeypatch: pytest.MonkeyPatch, found: report.Report
) -> None:
    """What the database spent in a server's rounds is divided among that server's operations."""
    ticks = iter(range(0, 1000, 9))
    monkeypatch.setattr(operations.proc, "cpu_ticks", lambda pid: next(ticks))
    monkeypatch.setattr(operations, "TICKS_A_SECOND", 100)
    monkeypatch.setattr(operations.load, "run", Load(greenline=[10] * 4))
    one: Any = {"greenline": Named("greenline")}
    operations.compete(found, one, FIND, 2, 3, clear=int, database=7, on="mongod")
    assert found.rows[0].more["db ms"] == 3 * 90 / 9


def test_everybody_has_one_worker_and_the_same_pools(tmp_path: Path) -> None:
    """All start with one worker, pools of one size and no access log."""
    for peers in (with_keys(*URLS), documents(*URLS)):
        for peer in peers:
            command = " ".join(peer.server(tmp_path).command)
            assert "--workers 1" in command
            assert re.search("gunicorn_quiet|gunicorn_plain|--no-access-log", command)
    assert {peer.env["POSTGRES_POOL_SIZE"] for peer in with_keys(*URLS)} == {"20"}
    sizes = {peer.env["MONGODB_MAX_POOL_SIZE"] for peer in documents(*URLS)}
    assert sizes == {str(MONGODB_POOL_SIZE)}
    assert [peer.who for peer in documents(*URLS)] == [
        "greenline", "fastapi-pymongo-async", "fastapi-to-thread", "gthread"
    ]  # fmt: skip


def test_only_the_agents_need_a_key() -> None:
    """Ours asks for keys where that is what is measured, and nowhere else."""
    assert with_keys(*URLS)[0].env["AUTH"] == "on"
    assert documents(*URLS)[0].env["AUTH"] == "off"
    assert api.lineup.lineup(*URLS)[0].env["AUTH"] == "off"


def test_a_server_without_access_control_is_reported() -> None:
    """A server that answers an agent to somebody without a key has less to do than the others."""
    servers: Any = {
        "ours": Named("ours", {api.AGENT: (401, b"")}),
        "open": Named("open", {api.AGENT: (200, b"{}")}),
    }
    assert list(api.let_in(servers)) == ["/agents/7: open answers 200 to somebody without a key"]


def test_everybody_finds_what_everybody_inserts() -> None:
    """Each inserts once, all are asked for it, and a different answer is reported."""
    same, other = (200, b'{"id": 1}'), (200, b'{"id": "1"}')
    ours = Named("ours", {"/messages/1": same})
    peer = Named("peer", {"/messages/1": other})
    servers: Any = {"ours": ours, "peer": peer}
    assert list(api.not_found(servers, api.INSERT_AND_FIND)) == [
        f"insert+find: peer answers something else than {who} at its insert at /id"
        for who in ("ours", "peer")
    ]
    assert ours.posted == peer.posted == [json.loads(api.MESSAGE)]
    peer.answers["/messages/1"] = same
    assert list(api.not_found(servers, api.INSERT_AND_FIND)) == []


def test_a_server_that_cannot_insert_is_reported() -> None:
    """An insert that is no 201, or does not say where, has nothing to find."""
    failing, silent = Named("failing"), Named("silent")
    failing.status_made, silent.location = 500, None  # type: ignore[assignment]
    servers: Any = {"failing": failing, "silent": silent}
    reported = list(api.not_found(servers, api.INSERT_AND_FIND))
    assert reported[0].startswith("insert+find: failing answers 500")
    assert "silent answers 201, with Location None" in reported[1]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param("mongod 8.0.4", 20_000, id="mongod"),
        pytest.param("memory", 20_000, id="memory"),
        pytest.param("SecantusDB 0.7.0b3", 2_000, id="secantusdb"),
    ],
)
def test_secantusdb_has_fewer_inserts(
    monkeypatch: pytest.MonkeyPatch, found: report.Report, tmp_path: Path, name: str, count: int
) -> None:
    """The others are asked as often as no. 1 asked; the table says which server it was."""
    asked = []
    monkeypatch.setattr(
        api.operations,
        "compete",
        lambda found, servers, task, clients, rounds, clear, database, on: asked.append(
            (task.count, clients, on)
        ),
    )
    mongo = mongodb.Lent(URLS[1], name, None)
    api.measure(api.Bench(found, 3, 1, URLS[0], LENT, tmp_path), mongo, {}, api.INSERT_AND_FIND)
    assert asked == [(count, 100, name), (count, 500, name)]


def find_row(
    who: str,
    cpu_ms: float,
    clients: int = 50,
    on: str = "memory",
    req_s: float = 300.0,
    p99_ms: float | None = None,
) -> report.Row:
    more = {"on": on, "cpu ms": cpu_ms}
    answers = {"200": 9}
    return report.Row("find-state", who, clients, answers, 1.0, req_s, p99_ms=p99_ms, more=more)


def test_finds_are_judged_by_their_processor_time_in_memory() -> None:
    """Each peer has its floor; what another engine limits is not judged."""
    rows = [
        find_row("greenline", 0.2),
        find_row(api.ASYNC, 0.31),
        find_row("gthread", 0.22),
        find_row("greenline", 0.2, clients=500),
        find_row(api.ASYNC, 0.24, clients=500),
        find_row("greenline", 0.9, on="SecantusDB"),
        find_row(api.ASYNC, 0.1, on="SecantusDB"),
    ]
    assert judged(rows, "CPU") == [
        (True, f"find-state from 50 clients, a CPU second, over {api.ASYNC}"),
        (False, "find-state from 50 clients, a CPU second, over gthread"),
        (False, f"find-state from 500 clients, a CPU second, over {api.ASYNC}"),
    ]


def test_no_peer_may_be_faster_or_have_a_better_99th_percentile() -> None:
    """Each is judged by itself, at each number of clients."""
    rows = [
        find_row("greenline", 0.2, p99_ms=20.0),
        find_row("gthread", 0.4, req_s=301.0, p99_ms=20.0),
        find_row(api.ASYNC, 0.4, req_s=300.0, p99_ms=19.0),
    ]
    assert judged(rows, "clients, over") == [
        (False, "find-state from 50 clients, over gthread"),
        (True, f"find-state from 50 clients, over {api.ASYNC}"),
    ]
    assert judged(rows, "p99") == [
        (True, "find-state from 50 clients, p99, over gthread"),
        (False, f"find-state from 50 clients, p99, over {api.ASYNC}"),
    ]


def judged(rows: list[report.Row], by: str) -> list[tuple[bool | None, str]]:
    """Return what is judged with *by* in its name, and whether it is kept."""
    every = [(each.kept, each.text.partition(":")[0]) for each in api.verdicts(rows)]
    return [(kept, what) for kept, what in every if by in what]


def test_two_engines_are_two_ratios() -> None:
    """Speeds on one engine are not compared with those on another."""
    rows = [
        find_row(who, 0.2, on=on) for on in ("memory", "mongod 8") for who in ("greenline", "p")
    ]
    assert report.ratios(rows) == {
        f"find-state on {on}": {"50": {"p": 1.0}} for on in ("memory", "mongod 8")
    }


def page(*gtins: str | None) -> tuple[int, bytes]:
    """Return the answer with products of these."""
    items = [{} if gtin is None else {"gtin": gtin} for gtin in gtins]
    return 200, json.dumps({"items": items}).encode()


def test_products_lack_a_field_or_hold_its_default() -> None:
    """As many products lack the field as hold its default, and a page of either is full."""
    made = [products.product(number) for number in range(products.COUNT)]
    missing = [each for each in made if "gtin" not in each]
    default = [each for each in made if each.get("gtin") == products.DEFAULT]
    assert len(missing) == len(default) == products.COUNT // products.SHARE > 50
    assert len({each["offerId"] for each in made}) == products.COUNT


def test_products_that_were_not_asked_for_are_reported() -> None:
    """Either question has to find a page of its own products."""
    missing, default = page(*[None] * 50), page(*[""] * 50)
    assert list(products.wrong(missing, default)) == []
    assert len(list(products.wrong(default, missing))) == 2
    assert len(list(products.wrong(page(None), default))) == 1
    assert list(products.wrong((422, b""), default)) == [
        "/products?lacking=gtin&limit=50: answers 422"
    ]


def test_products_are_stored_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are sent; a batch that is refused ends it, with the reason."""
    monkeypatch.setattr(products, "COUNT", 3_000)
    server: Any = Named("ours")
    products.fill(server)
    assert [len(each["items"]) for each in server.posted] == [1_000, 1_000, 1_000]
    server.status_made = 409
    with pytest.raises(ServerError, match="answers 409"):
        products.fill(server)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param("mongodb://h:1/", "mongodb://h:1/x", id="none"),
        pytest.param("mongodb://h:1", "mongodb://h:1/x", id="no-path"),
        pytest.param("mongodb://h/shop?w=1", "mongodb://h/x?w=1", id="another"),
        pytest.param(
            "mongodb://u:p%40@h/shop", "mongodb://u:p%40@h/x?authSource=shop", id="its-users"
        ),
        pytest.param(
            "mongodb://u:p@h/shop?authSource=admin",
            "mongodb://u:p@h/x?authSource=admin",
            id="users-elsewhere",
        ),
        pytest.param(
            "mongodb://a:1,b:2/?replicaSet=rs", "mongodb://a:1,b:2/x?replicaSet=rs", id="replicas"
        ),
    ],
)
def test_a_bench_has_a_database_of_its_own(given: str, expected: str) -> None:
    """What somebody keeps on the server of MONGODB_URI is not touched."""
    assert mongodb.with_database(given, "x") == expected


def test_a_part_that_fails_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, found: report.Report, tmp_path: Path
) -> None:
    """The run is invalid, and what else could be measured was."""
    done = []

    def fail(bench: api.Bench) -> None:
        raise ServerError("not ready")

    parts = {"books": fail, "states": lambda bench: done.append("states")}
    monkeypatch.setattr(api, "PARTS", parts)
    api.measure_all(api.Bench(found, 3, 1, URLS[0], LENT, tmp_path), ["books", "states"])
    assert found.problems == ["books: not ready"]
    assert done == ["states"]


def test_main_measures_what_the_arguments_say(
    monkeypatch: pytest.MonkeyPatch, found: report.Report, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts and rounds come from the command line; a problem makes the exit status 1."""

    def run(found: report.Report, rounds: int, workers: int, parts: list[str]) -> None:
        assert (rounds, workers, parts) == (2, 4, ["states", "products"])
        found.add(report.Row("find-state", "greenline", 50, {"200": 9}, 1.0, 300.0))
        found.add(report.Row("find-state", "peer", 50, {"200": 9}, 1.0, 200.0))
        found.invalid("bodies differ")

    monkeypatch.setattr(api, "run", run)
    monkeypatch.setattr(api.signal, "signal", lambda *_: None)
    monkeypatch.setattr(api.report, "Report", {"api-4-workers": found}.get)
    command = ["api", "--rounds", "2", "--workers", "4", "--only", "states", "products"]
    monkeypatch.setattr(api.sys, "argv", command)
    assert api.main() == 1
    said = capsys.readouterr().out
    assert "INVALID: bodies differ" in said
    assert re.search(r"our req/s over +clients +peer\nfind-state +50 +1.50\n", said)

"""
Ten shapes of a request: ours beside other servers and frameworks, Flask as it is among them.

1. All servers are started once, each with one worker, and idle while another is measured. They
   have the first core to themselves and the clients have the others (``bench/cores.py``).
2. Before a shape is measured all must answer it with its status and, where that is JSON, the same.
3. wrk, a closed loop, measures the throughput in rounds, which are interleaved; what is judged is
   the middle of the ratios in each round. Servers that nothing is judged by are measured in the
   first round alone. vegeta, an open loop, measures p99 at equal load, of ours and of Starlette on
   uvicorn: at all connections for the first shape and at FAIR_AT for the others.
4. The memory of idle connections and of a worker at rest (``bench/http_memory.py``) and two
   workers beside one (``bench/http_workers.py``) are parts of a run.
5. The exit status is 1 when the run is invalid, misses a promise or takes more than 20 minutes. A
   missed p99 is not judged when the other's rounds lie too far apart: what is in ours alone is no
   noise. A run of parts has a file of results of its own.

    python -m bench.http [--shapes small-json,stream] [--idle] [--workers] [--rounds 4] [--quick]
"""

import argparse
import http.client
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from bench import (
    bodies,
    cores,
    hey,
    hey_build,
    http_memory,
    http_workers,
    picture,
    promises,
    report,
    vegeta,
    wrk,
)
from bench.http_lineup import ADOPTED, GRANIAN_WSGI, RIVAL, Peer, lineup, plain
from bench.http_report import Http
from bench.http_shapes import PLAIN, SHAPES, SMALL, STREAM, Shape
from bench.report import OURS
from bench.rounds import PATIENCE_S, interleaved, refused
from bench.servers import Server, ServerError, wait_until_quiet

ROUNDS, FAIR_ROUNDS = 4, 3
WRK_S = 1
WARM = 200  # requests
QUIET_S = 0.05
CLIENTS = (10, 100, 1000)
FLOOR, AIM, ADOPTED_FLOOR, STREAM_FLOOR = 1.0, 1.3, 0.9, 1.0
# Equal load: this part of what the slower of the two can take, and no more than vegeta can offer
# with ease from one core.
LOAD, MAX_RATE = 0.3, 5000
FAIR, FAIR_AT, FAIR_S, MAX_FAIR_S, FAIR_ANSWERS = "fair", 100, 1.5, 5.0, 2000
LEAD_S = 1.0  # A thousand connections are made in it, which is another measurement.
P99_LIMIT = 1.2
# (most - least) / middle of the rival's p99, above which a miss says more of the machine.
NOISY = 0.5
MAX_MINUTES = 20
NAMES = [shape.name for shape in (*SHAPES, *PLAIN.values())]
FAILURES = (
    ServerError,
    hey_build.BuildError,
    vegeta.VegetaError,
    wrk.WrkError,
    subprocess.TimeoutExpired,
    OSError,
    http.client.HTTPException,
)
NOTES = f"""
{OURS}: greenline.flask on our worker; green-flask: Flask as it is; green-wsgi: no framework
{ADOPTED}: Flask as it is, with the setting that speeds it up; of Django and wsgiref: our worker
each has one worker and no access log; memory is that of all processes of a server
a row is the middle one of its rounds: by req/s, and by p99 where the load is offered ({FAIR})
a ratio is the middle of those in each round, and need not be that of the middle rows
spread: (most - least) / middle of the rounds; the rival's too wide: a missed p99 is not judged
the picture is beside the JSON, bench/results/http.png
{FAIR}: vegeta offers both one rate, at most {LOAD:g} of what the slower takes in a closed loop"""
Rows = Mapping[str, Sequence[report.Row]]


@dataclass(frozen=True)
class Floor:
    """The least ratio of the req/s of *ours* to *its*; of the shape *only*, None: of all."""

    ours: str
    its: str
    least: float
    aim: float | None = None
    only: str | None = None


FLOORS = (
    Floor(OURS, RIVAL, FLOOR, AIM),
    Floor(ADOPTED, OURS, ADOPTED_FLOOR),
    Floor(OURS, GRANIAN_WSGI, STREAM_FLOOR, only=STREAM.name),
)


def run(found: Http, options: argparse.Namespace) -> list[promises.Verdict]:
    """Measure the parts of the run, and judge."""
    began_s = monotonic()
    vegeta.find()  # Built now and not in mid-run; Go wants all cores.
    verdicts: list[promises.Verdict] = []
    with tempfile.TemporaryDirectory(prefix="gl-") as name:
        folder = Path(name)
        shapes = [shape for shape in SHAPES if shape.name in options.shapes]
        if shapes:
            peers = [peer for peer in lineup() if SMALL in shapes or not peer.is_small_only]
            with started(peers, folder) as servers:
                for shape in shapes:
                    those = {peer.who: servers[peer.who] for peer in peers if peer.answers(shape)}
                    verdicts += measure(found, those, shape, options.rounds)
        for target, shape in PLAIN.items():
            if shape.name in options.shapes:
                with started(plain(target), folder) as servers:
                    verdicts += measure(found, servers, shape, options.rounds)
        if options.idle:
            verdicts += http_memory.measure(found, folder)
        if options.workers:
            verdicts += http_workers.measure(found, folder, options.rounds)
    minutes = (monotonic() - began_s) / 60
    return [*verdicts, promises.at_most("minutes of the run", minutes, MAX_MINUTES)]


@contextmanager
def started(peers: Sequence[Peer], folder: Path) -> Iterator[dict[str, Server]]:
    """Run *peers* on the servers' cores for the length of the block, which has the others."""
    servers_cores, others_cores = cores.divided()
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        with cores.on(servers_cores):
            for peer in peers:
                print(f"starting {peer.who}", file=sys.stderr, flush=True)
                servers[peer.who] = stack.enter_context(peer.server(folder))
        with cores.on(others_cores):
            yield servers


def measure(
    found: Http, servers: Mapping[str, Server], shape: Shape, rounds: int
) -> list[promises.Verdict]:
    """Compare what all *servers* answer to *shape*, measure them and judge."""
    if problems := list(wrong_answers(servers, shape)):
        for problem in problems:
            found.invalid(f"{shape.name}: {problem}")
        return []
    for server in servers.values():
        for _ in range(WARM):
            ask(server, shape)
    verdicts: list[promises.Verdict] = []
    for clients in CLIENTS:
        rows = compare(found, servers, shape, clients, rounds)
        found.keep(rows)
        verdicts += judge(shape.name, clients, rows)
        if RIVAL in rows and (shape == SMALL or clients == FAIR_AT):
            pair = {who: servers[who] for who in (OURS, RIVAL)}
            slower = min(report.middle(rows[who]).req_s for who in pair)
            load = Load(shape, clients, equal_rate(slower))
            verdicts.append(fair(found, pair, load, min(rounds, FAIR_ROUNDS)))
    return verdicts


def ask(server: Server, shape: Shape) -> bodies.Answer:
    """Ask *server* once, over a connection of its own."""
    status, _, body = server.ask(
        shape.method, shape.path, shape.headers, shape.body, timeout_s=PATIENCE_S
    )
    return status, body


def wrong_answers(servers: Mapping[str, Server], shape: Shape) -> Iterator[str]:
    """Ask all *servers* once; say which of them answers something else than it should."""
    answers: dict[str, bodies.Answer] = {}
    for who, server in servers.items():
        answers[who] = ask(server, shape)
        if answers[who][0] != shape.status:
            yield f"{who} answers {answers[who][0]}"
    if shape.has_same_body:
        yield from bodies.differences(answers)


def compare(
    found: Http, servers: Mapping[str, Server], shape: Shape, clients: int, rounds: int
) -> dict[str, list[report.Row]]:
    """Return the rows of each server; a wrong answer, or one of ours that is lost, is a problem."""
    print(f"{shape.name}, {clients} connections", file=sys.stderr, flush=True)
    judged = {who for floor in floors(shape.name, servers) for who in (floor.ours, floor.its)}
    rows: dict[str, list[report.Row]] = {who: [] for who in servers}
    for round_, (who, server) in interleaved(list(servers.items()), rounds):
        if round_ and who not in judged:
            continue
        result = wrk.run(
            server.url + shape.path,
            clients,
            WRK_S,
            method=shape.method,
            headers=shape.headers,
            body=shape.body,
            status=shape.status,
        )
        rows[who].append(report.row(shape.name, who, result, server.rss_mb()))
        # It may go on answering those that are gone, and would take the core from the next one.
        if server.process is not None:
            wait_until_quiet(server.process.pid, QUIET_S)
        problem = refused(result.answers, shape.status)
        # A peer without an answer is slow, and its row says so.
        if problem and ("wrong" in result.answers or who in (OURS, ADOPTED)):
            found.invalid(f"{shape.name} {who} {clients} clients, round {round_ + 1}: {problem}")
    return rows


def floors(work: str, servers: Collection[str]) -> list[Floor]:
    """Return the floors of *work* where *servers* take part."""
    return [
        floor
        for floor in FLOORS
        if floor.only in (None, work) and floor.ours in servers and floor.its in servers
    ]


def judge(work: str, clients: int, rows: Rows) -> list[promises.Verdict]:
    """Judge the throughput at *work* with so many *clients*."""
    return [
        promises.at_least(
            f"{work}, {clients} connections, req/s of {floor.ours} over {floor.its}",
            report.paired(rows[floor.ours], rows[floor.its]),
            floor.least,
            floor.aim,
        )
        for floor in floors(work, rows)
    ]


@dataclass(frozen=True)
class Load:
    """What two servers are offered: *rate* requests a second over *clients* connections."""

    shape: Shape
    clients: int
    rate: int

    def offer(self, server: Server) -> hey.Result:
        """Offer it to *server*, for longer where there are few requests a second."""
        seconds = min(max(FAIR_S, FAIR_ANSWERS / self.rate), MAX_FAIR_S)
        answers = vegeta.attack(
            server.url + self.shape.path,
            self.rate,
            seconds,
            lead_s=LEAD_S,
            connections=self.clients,
            method=self.shape.method,
            headers=self.shape.headers,
            body=self.shape.body,
        )
        return vegeta.split_by_status(answers, self.clients, seconds, self.shape.status)


def equal_rate(req_s: float) -> int:
    """Return the rate at which both are asked when the slower one takes *req_s*."""
    return max(100, min(MAX_RATE, int(LOAD * req_s) // 100 * 100))


def fair(found: Http, pair: Mapping[str, Server], load: Load, rounds: int) -> promises.Verdict:
    """Judge our p99 where both of a *pair* are offered one *load*."""
    work = f"{FAIR} {load.shape.name}"
    print(f"{work}, {load.clients} connections", file=sys.stderr, flush=True)
    both: dict[str, list[report.Row]] = {who: [] for who in pair}
    for _, (who, server) in interleaved(list(pair.items()), rounds):
        result = load.offer(server)
        both[who].append(report.row(work, who, result, server.rss_mb()))
        if problem := refused(result.answers, load.shape.status):
            found.invalid(f"{work} {who} {load.clients} clients: {problem}")
    ours, its = (middle_p99(each, load.rate) for each in both.values())
    found.add(ours)
    found.add(its)
    if ours.p99_ms and its.p99_ms:
        found.p99[load.shape.name, load.clients] = ours.p99_ms / its.p99_ms
    return p99_verdict(ours, its)


def middle_p99(rows: Sequence[report.Row], rate: int) -> report.Row:
    """Return the row with the middle p99, with how far they lie apart, at *rate*."""
    ordered = sorted(rows, key=lambda each: each.p99_ms or 0.0)
    p99_ms = [each.p99_ms or 0.0 for each in ordered]
    between = statistics.median(p99_ms)
    known = len(rows) > 1 and between
    spread = round((p99_ms[-1] - p99_ms[0]) / between, 2) if known else None
    more = {"offered/s": rate, "p99 spread": spread}
    return replace(ordered[(len(ordered) - 1) // 2], more=more)


def p99_verdict(ours: report.Row, its: report.Row) -> promises.Verdict:
    """Judge our p99 over its, unless its rounds lie too far apart: ours alone are no noise."""
    what = f"{ours.work}, {ours.clients} connections, p99 over {RIVAL}"
    what += f", {ours.more['offered/s']} requests/s each"
    if not (ours.p99_ms and its.p99_ms):
        return promises.Verdict(False, f"{what}: no answers")
    spreads = [each.more["p99 spread"] for each in (ours, its)]
    doubt = None
    if spreads[1] is None:
        doubt = "one round tells no spread"
    elif spreads[1] > NOISY:
        doubt = f"too noisy a machine, as its spread is above {NOISY:g}"
    verdict = promises.at_most(what, ours.p99_ms / its.p99_ms, P99_LIMIT, doubt)
    return replace(verdict, text=f"{verdict.text} (spread: ours {spreads[0]}, its {spreads[1]})")


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options in *arguments*: without a part that is named, all parts are chosen."""

    def names(text: str) -> list[str]:
        wanted = text.split(",")
        if not set(wanted) <= set(NAMES):
            raise argparse.ArgumentTypeError(f"there are: {' '.join(NAMES)}")
        return wanted

    parser = argparse.ArgumentParser(prog="python -m bench.http", description=__doc__)
    parser.add_argument("--shapes", type=names, default=[], help="names, with commas")
    parser.add_argument(
        "--idle", action="store_true", help="memory, of idle connections and at rest"
    )
    parser.add_argument("--workers", action="store_true", help="two workers beside one")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of {WRK_S} s for each")
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args(arguments)
    options.rounds = 1 if options.quick else max(1, options.rounds)
    options.is_whole = not (options.shapes or options.idle or options.workers)
    if options.is_whole:
        options.shapes, options.idle, options.workers = NAMES, True, True
    return options


def main() -> int:
    """Run the bench, print and write what came of it."""
    options = parsed()
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = Http("http" if options.is_whole and not options.quick else "http-part")
    verdicts: list[promises.Verdict] = []
    try:
        verdicts = run(found, options)
    except FAILURES as error:
        found.invalid(str(error))
    status = found.finish()
    print(f"\n{found.markdown()}")
    print(f"{NOTES}\n")
    if SMALL.name in found.ratios:
        picture.bars(found.rows, report.RESULTS / f"{found.name}.png")
    return promises.status(verdicts) or status


if __name__ == "__main__":
    raise SystemExit(main())

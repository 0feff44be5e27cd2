"""
A small JSON answer: ours beside other servers and frameworks.

1. All servers are started once, each with one worker, and idle while another is measured. They
   have the first core to themselves and who asks has the others (``bench/cores.py``).
2. Before anything is measured all must answer the same.
3. wrk and hey are closed loops: they measure the throughput. vegeta, an open loop, measures p99
   at equal load, for ours and Starlette on uvicorn alone.
4. The exit status is 1 when the run is invalid or a promise is missed. A missed p99 is not
   judged when the other's rounds lie too far apart: what is in ours alone is no noise.

    python -m bench.http [--rounds 3]
"""

import argparse
import http.client
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench import cores, hey, hey_build, picture, promises, report, vegeta, wrk
from bench.http_lineup import RIVAL, lineup
from bench.rounds import Work, compete, interleaved, refused, same_answers
from bench.servers import Server, ServerError

ROUNDS = 3
WRK_S = 1
CLIENTS = (10, 100, 1000)
# hey keeps 500 idle connections: with more clients it connects again for many requests.
HEY_CLIENTS = (10, 100)
ANSWER = Work("hey", "/")
FLOOR, AIM, AT_CLIENTS = 0.8, 1.0, 10
# Equal load: this part of what the slower of the two can take, and no more than vegeta can offer
# with ease from one core.
LOAD, MAX_RATE = 0.3, 5000
FAIR, FAIR_S = "fair", 1.5
LEAD_S = 1.0  # A thousand connections are made in it, which is another measurement.
P99_LIMIT = 1.5
# (most - least) / middle of the rival's p99, above which a miss says more of the machine.
NOISY = 0.5
FAILURES = (
    ServerError,
    hey.HeyError,
    hey_build.BuildError,
    vegeta.VegetaError,
    wrk.WrkError,
    subprocess.TimeoutExpired,
    OSError,
    http.client.HTTPException,
)
NOTES = f"""
{report.OURS}: greenline.flask on our worker; green-flask: Flask as it is; green-wsgi: no framework
each has one worker and no access log; memory is that of all processes of a server
a row is the middle one of its rounds: by req/s, and by p99 where the load is offered ({FAIR})
spread: (most - least) / middle of the rounds; the rival's too wide: a missed p99 is not judged
the picture is beside the JSON, bench/results/http.png
{FAIR}: vegeta offers both one rate, at most {LOAD:g} of what the slower takes in a closed loop"""


def run(found: report.Report, rounds: int) -> list[promises.Verdict]:
    """Start everybody, compare what they answer, measure them and judge."""
    servers_cores, others_cores = cores.divided()
    print(f"servers on {sorted(servers_cores)}, the others on {sorted(others_cores)} of the cores")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        vegeta.find()  # Built now and not in mid-run; Go wants all cores.
        has_wrk = wrk.find() is not None
        servers = {}
        with cores.on(servers_cores):
            for peer in lineup():
                print(f"starting {peer.who}", file=sys.stderr, flush=True)
                servers[peer.who] = stack.enter_context(peer.server(folder))
        for problem in same_answers(servers, [ANSWER]):
            found.invalid(problem)
        if found.problems:
            return []
        with cores.on(others_cores):
            if has_wrk:
                by_wrk(found, servers, rounds)
            else:
                print("there is no wrk (the system's package): hey alone tells the throughput")
            for clients in HEY_CLIENTS if has_wrk else CLIENTS:
                compete(found, servers, ANSWER, clients, max(1, rounds // 2))
            if found.problems:
                return []
            return judge(found, "wrk" if has_wrk else ANSWER.name, servers, rounds)


def by_wrk(found: report.Report, servers: Mapping[str, Server], rounds: int) -> None:
    """Measure all *servers* with wrk; an error is a problem when it is ours."""
    for server in servers.values():
        wrk.run(server.url, CLIENTS[0], WRK_S)  # Warm it.
    for clients in CLIENTS:
        print(f"wrk, {clients} connections", file=sys.stderr, flush=True)
        rows: dict[str, list[report.Row]] = {who: [] for who in servers}
        for round_, (who, server) in interleaved(list(servers.items()), rounds):
            result = wrk.run(server.url, clients, WRK_S)
            rows[who].append(report.row("wrk", who, result, server.rss_mb()))
            problem = refused(result.answers)
            if problem and who == report.OURS:
                found.invalid(f"wrk {who} {clients} clients, round {round_ + 1}: {problem}")
        for each in rows.values():
            found.add(report.middle(each))


def judge(
    found: report.Report, closed: str, servers: Mapping[str, Server], rounds: int
) -> list[promises.Verdict]:
    """Judge our throughput by the *closed* loop, and p99 at equal load, which is measured here."""
    pair = {who: servers[who] for who in (report.OURS, RIVAL)}
    speeds = {row.clients: row for row in found.rows if (row.work, row.who) == (closed, RIVAL)}
    verdicts = [
        promises.at_least(
            f"req/s over {RIVAL}, {closed}, {AT_CLIENTS} connections",
            report.ratios(found.rows)[closed][str(AT_CLIENTS)][RIVAL] or 0.0,
            FLOOR,
            AIM,
        )
    ]
    for clients in sorted(speeds):
        print(f"{FAIR}, {clients} connections", file=sys.stderr, flush=True)
        slower = min(
            row.req_s
            for row in found.rows
            if (row.work, row.clients) == (closed, clients) and row.who in pair
        )
        rate = equal_rate(slower)
        both: dict[str, list[report.Row]] = {who: [] for who in pair}
        for _, (who, server) in interleaved(list(pair.items()), rounds):
            both[who].append(fair_row(found, who, server, clients, rate))
        ours, its = (middle_p99(each, rate) for each in both.values())
        found.add(ours)
        found.add(its)
        verdicts.append(p99_verdict(ours, its))
    return verdicts


def equal_rate(req_s: float) -> int:
    """Return the rate at which both are asked when the slower one takes *req_s*."""
    return max(100, min(MAX_RATE, int(LOAD * req_s) // 100 * 100))


def fair_row(found: report.Report, who: str, server: Server, clients: int, rate: int) -> report.Row:
    """Offer *server* the *rate* over *clients* connections; anything but a 200 is a problem."""
    answers = vegeta.attack(f"{server.url}/", rate, FAIR_S, lead_s=LEAD_S, connections=clients)
    result = vegeta.split_by_status(answers, clients, FAIR_S)
    problem = refused(result.answers)
    if problem:
        found.invalid(f"{FAIR} {who} {clients} clients: {problem}")
    return report.row(FAIR, who, result, server.rss_mb())


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
    what = f"p99 over {RIVAL}, {ours.clients} connections, {ours.more['offered/s']} requests/s each"
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


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.http", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of {WRK_S} s for each")
    rounds = max(1, parser.parse_args().rounds)
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = report.Report("http")
    verdicts: list[promises.Verdict] = []
    try:
        verdicts = run(found, rounds)
    except FAILURES as error:
        found.invalid(str(error))
    status = found.finish()
    closed = [row for row in found.rows if row.work != FAIR]
    print(f"\n{report.ratio_table(report.ratios(closed))}")
    print(f"{NOTES}\n")
    if closed:
        picture.bars(closed, report.RESULTS / "http.png")
    return promises.status(verdicts) or status


if __name__ == "__main__":
    raise SystemExit(main())

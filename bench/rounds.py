"""
Measure several servers in turns.

1. Rounds are interleaved (A, B, C, A, B, C, ...), so that a busy minute of the machine hits all;
   a row is the round with the middle req/s, and says how far the rounds lie apart.
2. A round lasts about as long for everybody: first each is asked until it is warm and its speed
   is known, then that tells how many requests a round has.
3. Any answer but a 200, of anyone, makes the run invalid.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench import hey, report
from bench.bodies import differences
from bench.servers import Server

ROUND_S = 1.2
WARM_S = 0.3
PATIENCE_S = 60  # a slow answer counts, however busy the machine is
IDS = (17, 271, 500, 733, 941)  # one a round, the same one for everybody
T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """
    One kind of read; ``{id}`` in its path is another one in each round.

    *part* is what is compared of the answers, where not all of them have the rest; *status* is the
    right one.
    """

    name: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    part: str | None = None
    status: int = 200

    def at(self, round_: int) -> str:
        """Return the path to ask for in round *round_*."""
        return self.path.format(id=IDS[round_ % len(IDS)])

    def ask(self, server: Server, round_: int, requests: int, clients: int) -> hey.Result:
        """Ask *server* as in round *round_*."""
        options = [word for each in self.headers.items() for word in ("-H", ": ".join(each))]
        url = server.url + self.at(round_)
        return hey.run(url, requests, clients, timeout_s=PATIENCE_S, options=options)


def interleaved(who: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield (round, one of *who*): everybody's turn comes once in each round."""
    for round_ in range(rounds):
        for each in who:
            yield round_, each


def requests_for(req_s: float, seconds: float, clients: int) -> int:
    """Return how many requests take about *seconds* at *req_s*: two a client or more."""
    each = max(2, math.ceil(req_s * seconds / clients))
    return min(each, hey.MAX_ROWS // clients) * clients


def same_answers(servers: Mapping[str, Server], works: Sequence[Work]) -> Iterator[str]:
    """Ask everybody for all that will be measured; say who answers something else."""
    for path, work in {
        work.at(round_): work for work in works for round_ in range(len(IDS))
    }.items():
        answers = {who: server.get(path, work.headers) for who, server in servers.items()}
        for problem in differences(answers, work.part):
            yield f"{path}: {problem}"


def compete(
    found: report.Report,
    servers: Mapping[str, Server],
    work: Work,
    clients: int,
    rounds: int,
    **more: Any,
) -> None:
    """Measure all *servers* at *work* with *clients* connections; rows and problems are kept."""
    entries = [(who, server, work) for who, server in servers.items()]
    compare(found, entries, clients, rounds, **more)


def compare(
    found: report.Report,
    entries: Sequence[tuple[str, Server, Work]],
    clients: int,
    rounds: int,
    **more: Any,
) -> None:
    """Measure all *entries* against each other; *more* are columns of their rows."""
    names = ", ".join(dict.fromkeys(work.name for _, _, work in entries))
    print(f"{names}, {clients} connections", file=sys.stderr, flush=True)
    counts = []
    for who, server, work in entries:
        result = warm(server, work, clients)
        counts.append(requests_for(result.req_s, ROUND_S, clients))
        problem = refused(result.answers, work.status)
        if problem:
            found.invalid(f"{work.name} {who} {clients} clients, before the rounds: {problem}")
            return
    rows: list[list[report.Row]] = [[] for _ in entries]
    for round_, place in interleaved(range(len(entries)), rounds):
        who, server, work = entries[place]
        before_us = server.cpu_us()
        result = work.ask(server, round_, counts[place], clients)
        cpu_us = round((server.cpu_us() - before_us) / result.asked, 1)
        rss_mb = server.rss_mb()
        rows[place].append(report.row(work.name, who, result, rss_mb, cpu_us=cpu_us, **more))
        problem = refused(result.answers, work.status)
        if problem:
            found.invalid(f"{work.name} {who} {clients} clients, round {round_ + 1}: {problem}")
    for each in rows:
        found.add(report.middle(each))


def warm(server: Server, work: Work, clients: int) -> hey.Result:
    """Ask until *server* is warm and its speed is known, or until it fails."""
    each = 2
    while True:
        result = work.ask(server, 0, each * clients, clients)
        if result.seconds >= WARM_S or refused(result.answers, work.status):
            return result
        # Three times as many, or nearly enough at once where the first guess was far off.
        each = max(3 * each, math.ceil(result.req_s * WARM_S / clients))


def refused(answers: Mapping[str, int], right: int = 200) -> str | None:
    """Say what *answers* there were if one of them was not the *right* one."""
    return None if set(answers) == {str(right)} else f"answers {dict(answers)}"

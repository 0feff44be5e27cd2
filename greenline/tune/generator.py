"""
Offer a rate of requests: a program of its own, ``python -m greenline.tune.generator``.

Open loop: each request is due at a time of its own, whether or not those before it are answered,
and its duration counts from then. So a service that stalls is charged with all that it kept waiting
(no coordinated omission).

For each :class:`Plan`, a line of its standard input, the program writes a line when the measuring
begins, another when the last request was sent, and then an :class:`Outcome`.
"""

import asyncio
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from time import process_time

import aiohttp
import msgspec

from greenline.tune.load import Request

BEGIN_S = 0.05  # until the first request
MEASURING, SENT = "measuring", "sent"
SPARE_DESCRIPTORS = 64
MIN_JUDGED = 50  # answers of the last ones, of which it is judged whether the service is broken
BROKEN = 0.5
NO_ANSWER = 0  # in place of a status


class Plan(msgspec.Struct, frozen=True):
    """
    What to offer.

    :param url: of the server, without a path, str.
    :param requests: offered in turn, from the one of the number *first*.
    :param headers: of each request.
    :param rate: requests a second, float.
    :param warm_up_s: seconds that do not count, float.
    :param seconds: seconds that count, float.
    :param timeout_s: a request without an answer for so long has failed, float seconds.
    :param first: int, default 0.
    :param is_spared: it ends when more than half of the last answers were errors, bool, default
        True.
    """

    url: str
    requests: list[Request]
    headers: dict[str, str]
    rate: float
    warm_up_s: float
    seconds: float
    timeout_s: float
    first: int = 0
    is_spared: bool = True


class Outcome(msgspec.Struct):
    """
    What became of the requests that count.

    :param statuses: how many were answered with each status; 0: no answer.
    :param durations_s: of the answers with 2xx, from the time at which they were due.
    :param answered: answers with 2xx that came while it was measured, int.
    :param late_s: by how much the p99 of the requests was sent too late, float seconds.
    :param cpu: the part of one processor that this program has used, float.
    :param is_broken: more than half of the last answers were errors, so it has stopped; bool.
    :param descriptors: as many as it may open were in use, int; 0: they sufficed.
    """

    statuses: dict[int, int]
    durations_s: list[float]
    answered: int
    late_s: float
    cpu: float
    is_broken: bool
    descriptors: int


class Generator:
    """
    Offer what a plan says.

    :param plan: the plan.
    :param max_open: connections that may be open at once, int.
    """

    def __init__(self, plan: Plan, max_open: int) -> None:
        self._plan, self._max_open = plan, max_open
        self._statuses: Counter[int] = Counter()
        self._durations_s: list[float] = []
        self._late_s: list[float] = []
        self._judged: list[bool] = []
        self._in_progress: set[asyncio.Task[None]] = set()
        self._is_short = self._is_broken = False
        self._measured_s, self._answered = 0.0, 0

    async def run(self) -> Outcome:
        """Offer the load, and wait for the answers."""
        plan = self._plan
        async with aiohttp.ClientSession(
            plan.url,
            headers=plan.headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=plan.timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        ) as session:
            cpu_s, seconds = await self._offer(session)
            _say(SENT)
            used_s = process_time() - cpu_s
            if self._in_progress:
                await asyncio.wait(self._in_progress)
        return Outcome(
            dict(self._statuses),
            self._durations_s,
            self._answered,
            late(self._late_s),
            used_s / max(seconds, 1e-3),
            self._is_broken,
            self._max_open if self._is_short else 0,
        )

    async def _offer(self, session: aiohttp.ClientSession) -> tuple[float, float]:
        """Send all; return the processor time at the beginning of the measuring, and its length."""
        plan = self._plan
        now = asyncio.get_running_loop().time
        begin_s = now() + BEGIN_S
        self._measured_s = measured_s = begin_s + plan.warm_up_s
        cpu_s = 0.0
        requests = cycle(plan.requests)
        for _ in range(plan.first % len(plan.requests)):
            next(requests)
        is_measuring = False
        for number in range(round(plan.rate * (plan.warm_up_s + plan.seconds))):
            due_s = begin_s + number / plan.rate
            # Also where it is late: the answers need the loop.
            await asyncio.sleep(max(due_s - now(), 0.0))
            if due_s >= measured_s and not is_measuring:
                is_measuring, cpu_s = True, process_time()
                _say(MEASURING)
            if is_measuring:
                self._late_s.append(now() - due_s)
            if len(self._in_progress) >= self._max_open:
                self._is_short = True
            if self._is_broken or self._is_short:
                break
            task = asyncio.create_task(self._ask(session, next(requests), due_s, is_measuring))
            self._in_progress.add(task)
            task.add_done_callback(self._in_progress.discard)
        if not is_measuring:
            _say(MEASURING)
        return cpu_s or process_time(), now() - measured_s

    async def _ask(
        self, session: aiohttp.ClientSession, request: Request, due_s: float, counts: bool
    ) -> None:
        try:
            async with session.request(
                request.method,
                request.target,
                headers=request.headers or None,
                data=request.body or None,
                allow_redirects=False,
            ) as response:
                await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            status = NO_ANSWER
        answered_s = asyncio.get_running_loop().time()
        self._judge(status)
        # A redirect is a session that has ended, perhaps.
        is_good = status // 100 == 2
        # Of an overload, answers to the warm-up too: what is due and not answered would be missing.
        if is_good and 0 <= answered_s - self._measured_s < self._plan.seconds:
            self._answered += 1
        if counts:
            self._statuses[status] += 1
            if is_good:
                self._durations_s.append(answered_s - due_s)

    def _judge(self, status: int) -> None:
        # A 503 too: only a server that was not started here is spared, and it may be in use.
        self._judged.append(status // 100 != 2)
        if len(self._judged) == MIN_JUDGED:
            self._is_broken |= self._plan.is_spared and sum(self._judged) > BROKEN * MIN_JUDGED
            self._judged.clear()


def late(late_s: Sequence[float]) -> float:
    """Return the p99 of *late_s*, 0 if there are none."""
    return sorted(late_s)[int(0.99 * (len(late_s) - 1))] if late_s else 0.0


def _say(word: str) -> None:
    print(word, flush=True)


def main() -> None:
    """Read plans, offer each, and write its outcome."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    max_open = sys.maxsize if hard == resource.RLIM_INFINITY else hard - SPARE_DESCRIPTORS
    for line in sys.stdin.buffer:
        plan = msgspec.json.decode(line, type=Plan)
        outcome = asyncio.run(Generator(plan, max_open).run())
        _say(msgspec.json.encode(outcome).decode())


if __name__ == "__main__":
    main()

"""
Report what a worker does to the processes that watch it: ``greenline top``, ``stacks``, the page.

The reports are in shared memory. The hub writes them, and the watchdog's native thread while the
hub is blocked.
"""

import logging
import os
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from time import monotonic
from typing import Any

from greenline.budget import plans
from greenline.budget.plan import Plan, table
from greenline.http.connection import ClientConnection
from greenline.http.response import Response
from greenline.hub import deadline, stacks
from greenline.hub.watchdog import Stack
from greenline.telemetry import counters
from greenline.telemetry.counters import Counters
from greenline.telemetry.reports import HubState, Reports, Stacks, function_of

HELD_S = 1.0
MAX_BLOCKING = 50  # functions that have a count of their own

log = logging.getLogger(__name__)


class Reporter:
    """
    Report what one worker does.

    :param reports: writes the reports.
    :param counts: the counters of the worker.
    :param conversations: the connections of its clients.
    """

    def __init__(self, reports: Reports, counts: Counters, conversations: Collection[Any]) -> None:
        self._reports = reports
        self._counters = counts
        self._conversations = conversations
        self._blocking: set[str] = set()  # functions that have blocked the hub
        self._plans: dict[str, Plan] = {}  # those that are in the reports
        self._held: deque[tuple[float, Any]] = deque()  # what the watchdog's thread has looked at

    def attend(self) -> None:
        """Note that the hub runs, and describe its greenlets if a process asks for that."""
        while self._held and self._held[0][0] < monotonic() - HELD_S:
            self._held.popleft()
        if self._plans != plans:
            self._plans = dict(plans)
            self._reports.note_tables({name: table(name, plan) for name, plan in plans.items()})
        if self._reports.beat():
            try:
                self._reports.answer(self._stacks())
            except Exception:  # must not end the worker's main loop
                self._reports.answered()
                log.exception("the stacks of the greenlets cannot be described")

    def end(self) -> None:
        """Note that the hub does not run any more."""
        self._reports.end()

    def note_hub(self, stack: Stack) -> None:
        """
        Note what the requests wait for; the watchdog's thread calls it while the hub is blocked.

        :param stack: of the hub's thread, the outermost frame first.
        """
        now = monotonic()
        conversations = tuple(self._conversations)
        found = list(_in_progress(conversations))
        # The hub drops the last reference to each: destructors must not run in this thread.
        values = [tuple(response.environ.values()) for response, _ in found]
        self._held.append((now, (conversations, found, values)))
        states = [
            stacks.request_state(response.environ, now - started_s) for response, started_s in found
        ]
        self._reports.note_hub(HubState(states, stack))

    def note_block(self, stack: Stack, late_s: float) -> None:
        """
        Count and report a function that has blocked the hub.

        :param stack: where, the outermost frame first.
        :param late_s: seconds, float.
        """
        name = function_of(stack)
        self._reports.note_block(late_s, name, stack)
        # Beyond MAX_BLOCKING, all others are counted as one.
        if len(self._blocking) < MAX_BLOCKING:
            self._blocking.add(name)
        known = name if name in self._blocking else counters.OTHER
        self._counters.count(("hub_blocked_by", known))

    def _stacks(self) -> Stacks:
        now = monotonic()
        ages_s: dict[int, float] = {}
        clients: dict[Any, Mapping[str, Any] | None] = {}
        queued: list[Mapping[str, Any]] = []
        for each in self._conversations:
            if isinstance(each, ClientConnection):
                if each.greenlet is not None:
                    clients[each.greenlet] = None
                if (found := each.in_progress()) is not None:
                    response, started_s = found
                    ages_s[id(response.environ)] = now - started_s
                    if each.queued is not None:
                        queued.append(response.environ)
                    elif (
                        each.greenlet is not None
                        and response.environ.get(deadline.WAITS_FOR) == "turn"
                    ):
                        clients[each.greenlet] = response.environ
        return stacks.describe(os.getpid(), ages_s, clients, queued)


def _in_progress(conversations: tuple[Any, ...]) -> Iterator[tuple[Response, float]]:
    """Yield the responses that are being made, and since when."""
    for each in conversations:
        if isinstance(each, ClientConnection) and (found := each.in_progress()) is not None:
            yield found

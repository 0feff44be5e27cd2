"""
Leave reports in shared memory for the processes that watch the workers.

Each worker writes to its row: the last requests that were slow or failed, the last blocks of its
hub, what its requests wait for while the hub is blocked, and the stacks of its greenlets where they
were asked for. A reader that comes in the middle of a write gets nothing, and looks again.
"""

import os
from collections.abc import Iterator, Sequence
from mmap import mmap
from time import monotonic, time
from typing import Any

import msgspec

from greenline.telemetry.shared_memory import REPORTS_ROW_BYTES, REPORTS_START, ROWS, SIZE_BYTES

# In each row: two cells of eight bytes, then the boxes. A box has the number of its content, the
# size, and the content, which is JSON.
HEAD_BYTES = 16
EVENTS, EVENT_BYTES = 64, 4096
EVENTS_START = 4096
STACKS_START, STACKS_BYTES = EVENTS_START + EVENTS * EVENT_BYTES, 512 * 1024
BLOCK_START = STACKS_START + STACKS_BYTES
BLOCK_BYTES = REPORTS_ROW_BYTES - BLOCK_START
TABLES_START = 64
ASKED, BEAT_US = 0, 1  # cells: how often stacks were asked for, and when the hub last ran
MAX_EVENTS_A_S = 20  # of a worker; in a storm of errors the others are left out
STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
NOT_RUNNING = -1
SHORT = 200  # characters of each text of a request

Frame = tuple[str, int, str]  # file, line and function


class RequestReport(msgspec.Struct, tag="request"):
    """
    A request that was slow, or failed.

    :param time: of its end, seconds since the epoch, float.
    :param worker: the process id of its worker, int.
    :param request_id: str.
    :param method: str.
    :param path: without the query string, str.
    :param route: the rule of the framework that matched, str; ``-`` if unknown.
    :param status: of the response, int.
    :param took_s: seconds, float.
    :param parts_s: seconds that it spent in queues and databases, by name.
    """

    time: float
    worker: int
    request_id: str
    method: str
    path: str
    route: str
    status: int
    took_s: float
    parts_s: dict[str, float]


class BlockReport(msgspec.Struct, tag="block"):
    """
    A block of a hub that is in the log.

    :param time: of its entry in the log, seconds since the epoch, float.
    :param worker: the process id, int.
    :param took_s: seconds, float.
    :param function: the innermost one that is not the standard library's, str.
    :param stack: the outermost frame first.
    """

    time: float
    worker: int
    took_s: float
    function: str
    stack: list[Frame]


class RequestState(msgspec.Struct):
    """
    A request in progress.

    :param method: str.
    :param path: without the query string, str.
    :param route: the rule of the framework that matched, str; ``-`` if unknown.
    :param age_s: seconds since it was read, float; None if unknown.
    :param waits_for: what it waits for, str; empty: it does not, or it is unknown.
    """

    method: str
    path: str
    route: str
    age_s: float | None
    waits_for: str


class GreenletState(msgspec.Struct):
    """
    A greenlet that waits.

    :param request: the request that it serves; None: it serves none.
    :param stack: the number of the stack where it waits, int.
    :param waits_for: str; empty if unknown.
    """

    request: RequestState | None
    stack: int
    waits_for: str


class Stacks(msgspec.Struct):
    """
    The greenlets of a worker.

    :param worker: the process id, int.
    :param greenlets: those that serve a request, and others that run code.
    :param stacks: each once, the outermost frame first.
    :param left_out: greenlets for which there was no room, int.
    """

    worker: int
    greenlets: list[GreenletState]
    stacks: list[list[Frame]]
    left_out: int = 0


class HubState(msgspec.Struct):
    """
    What a worker did when its hub was blocked.

    :param requests: those in progress.
    :param stack: of the hub's thread, the outermost frame first.
    """

    requests: list[RequestState]
    stack: list[Frame]


class Reports:
    """
    Write the reports of one worker.

    :param fd: the descriptor of the memory, int.
    :param row: the number of the worker's row, int.
    :param pid: of the worker, int.
    """

    def __init__(self, fd: int, row: int, pid: int) -> None:
        self._memory = mmap(fd, SIZE_BYTES)
        self._start = REPORTS_START + row * REPORTS_ROW_BYTES
        self._cells = memoryview(self._memory).cast("q")
        self._pid = pid
        # The events of the worker that had the row before stay.
        self._events = max(_number(self._cells, self._start + each) for each in _event_boxes())
        self._second, self._in_second = 0, 0
        _clear(self._cells, self._start + TABLES_START)
        self.answered()
        _clear(self._cells, self._start + BLOCK_START)
        self.end()

    def end(self) -> None:
        """Note that the hub does not run yet, or no more: then it is not late."""
        self._cells[self._start // 8 + BEAT_US] = NOT_RUNNING

    def beat(self) -> bool:
        """Note that the hub runs; return whether the stacks of the greenlets are asked for."""
        cell = self._start // 8
        self._cells[cell + BEAT_US] = int(monotonic() * 1e6)
        return self._cells[cell + ASKED] != self._answered

    def answered(self) -> int:
        """Return the number of the last question, and take it as answered."""
        self._answered = int(self._cells[self._start // 8 + ASKED])
        return self._answered

    def answer(self, stacks: Stacks) -> None:
        """Answer the question for the stacks."""
        room = STACKS_BYTES - HEAD_BYTES
        number = self.answered()
        while len(text := msgspec.json.encode(stacks)) > room:
            kept = len(stacks.greenlets) // 2
            stacks.left_out += len(stacks.greenlets) - kept
            del stacks.greenlets[kept:]
        self._write(self._start + STACKS_START, number, text)

    def note_hub(self, state: HubState) -> None:
        """Note what the worker does; the native thread that finds the hub blocked calls it."""
        # Its number is the last time that the hub was here: a block ends with the next one.
        beat_us = int(self._cells[self._start // 8 + BEAT_US])
        while len(text := msgspec.json.encode(state)) > BLOCK_BYTES - HEAD_BYTES:
            del state.requests[len(state.requests) // 2 :]
            del state.stack[: len(state.stack) // 2]
        self._write(self._start + BLOCK_START, beat_us, text)

    def note_tables(self, tables: dict[str, str]) -> None:
        """Note the plans of the connections, as sums by the name of the pool."""
        text = msgspec.json.encode(tables)
        if len(text) <= EVENTS_START - TABLES_START - HEAD_BYTES:
            self._write(self._start + TABLES_START, 0, text)

    def note_request(
        self,
        *,
        request_id: str,
        method: str,
        path: str,
        route: str,
        status: int,
        took_s: float,
        parts_s: dict[str, float],
    ) -> None:
        """Note a request; the parameters are those of :class:`RequestReport`."""
        if self._has_time():
            self._add(
                RequestReport(
                    time(), self._pid, request_id[:SHORT], method[:SHORT], path[:SHORT],
                    route[:SHORT], status, took_s, parts_s,
                )
            )  # fmt: skip

    def note_block(self, took_s: float, function: str, stack: Sequence[Frame]) -> None:
        """Note a block; the parameters are those of :class:`BlockReport`."""
        report = BlockReport(time(), self._pid, took_s, function, list(stack))
        while len(msgspec.json.encode(report)) > EVENT_BYTES - HEAD_BYTES and report.stack:
            del report.stack[0]
        self._add(report)

    def _has_time(self) -> bool:
        second = int(monotonic())
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        return self._in_second <= MAX_EVENTS_A_S

    def _add(self, report: RequestReport | BlockReport) -> None:
        self._events += 1
        start = self._start + EVENTS_START + self._events % EVENTS * EVENT_BYTES
        self._write(start, self._events, msgspec.json.encode(report)[: EVENT_BYTES - HEAD_BYTES])

    def _write(self, start: int, number: int, text: bytes) -> None:
        _clear(self._cells, start)
        self._memory[start + HEAD_BYTES : start + HEAD_BYTES + len(text)] = text
        self._cells[start // 8] = number
        self._cells[start // 8 + 1] = len(text)  # last: it makes the content valid


class ReportReader:
    """
    Read the reports of all workers.

    :param fd: the descriptor of the memory, int.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap(fd, SIZE_BYTES)
        self._cells = memoryview(self._memory).cast("q")

    def events(self) -> list[RequestReport | BlockReport]:
        """Return the events of all workers, those that have ended included; the last one first."""
        found: list[RequestReport | BlockReport] = []
        for row in range(ROWS):
            start = REPORTS_START + row * REPORTS_ROW_BYTES
            if not self._cells[start // 8 + BEAT_US]:
                break  # rows are taken in order
            for box in _event_boxes():
                one: Any = self._read(start + box, RequestReport | BlockReport)
                if one is not None:
                    found.append(one)
        return sorted(found, key=lambda each: each.time, reverse=True)

    def late_s(self, row: int) -> float:
        """Return the seconds since the hub of a worker last ran its main loop."""
        beat_us = self._cells[(REPORTS_START + row * REPORTS_ROW_BYTES) // 8 + BEAT_US]
        return max(monotonic() - beat_us / 1e6, 0.0) if beat_us > 0 else 0.0

    def hub(self, row: int) -> HubState | None:
        """Return what a worker does whose hub is blocked; None: its hub runs, or it is unknown."""
        start = REPORTS_START + row * REPORTS_ROW_BYTES
        number = _number(self._cells, start + BLOCK_START)
        state: HubState | None = self._read(start + BLOCK_START, HubState)
        return state if number == self._cells[start // 8 + BEAT_US] else None

    def tables(self, row: int) -> dict[str, str]:
        """Return the plans of a worker's connections, by the name of the pool."""
        start = REPORTS_START + row * REPORTS_ROW_BYTES + TABLES_START
        return self._read(start, dict[str, str]) or {}

    def ask(self, row: int) -> int:
        """Ask a worker for its stacks; return the number of the question."""
        cell = (REPORTS_START + row * REPORTS_ROW_BYTES) // 8 + ASKED
        self._cells[cell] += 1
        return int(self._cells[cell])

    def stacks(self, row: int, number: int) -> Stacks | None:
        """Return the answer to a question; None: there is none yet."""
        start = REPORTS_START + row * REPORTS_ROW_BYTES + STACKS_START
        if _number(self._cells, start) < number:
            return None
        found: Stacks | None = self._read(start, Stacks)
        return found

    def _read(self, start: int, kind: Any) -> Any:
        number, size = self._cells[start // 8], self._cells[start // 8 + 1]
        text = self._memory[start + HEAD_BYTES : start + HEAD_BYTES + size]
        if not size or (self._cells[start // 8], self._cells[start // 8 + 1]) != (number, size):
            return None
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError:
            return None


def _event_boxes() -> Iterator[int]:
    return iter(range(EVENTS_START, EVENTS_START + EVENTS * EVENT_BYTES, EVENT_BYTES))


def _number(cells: Any, start: int) -> int:
    return int(cells[start // 8])


def _clear(cells: Any, start: int) -> None:
    cells[start // 8 + 1] = 0


def function_of(stack: Sequence[Frame]) -> str:
    """
    Return ``file.function`` of the innermost frame that is not the standard library's.

    :param stack: file, line and function of each frame, the outermost first.
    """
    others = (
        each
        for each in reversed(stack)
        if not each[0].startswith(STANDARD_LIBRARY) or "-packages" in each[0]  # installed there
    )
    file, _, function = next(others, stack[-1])
    return f"{os.path.basename(file).removesuffix('.py')}.{function}"

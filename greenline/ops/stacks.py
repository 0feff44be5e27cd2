"""Ask workers where their greenlets are, and write it as text."""

import linecache
import os
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Sequence
from time import monotonic, sleep, time

from greenline.ops.values import BLOCKED_S
from greenline.ops.watch import Watch
from greenline.telemetry.counters import OF_ONE
from greenline.telemetry.reports import (
    BlockReport,
    Frame,
    GreenletState,
    HubState,
    ReportReader,
    RequestState,
    Stacks,
)

ANSWER_S = 2.0  # in which a worker answers, unless its hub is blocked
LOOK_S = 0.02
MAX_LISTED, MAX_BLOCKS = 10, 3  # requests at one place, and blocks of a worker
# Frames of these are above those of the application, or are no code of its own.
RUNTIME = (
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),
    *(os.path.join(sysconfig.get_path("platlib"), name, "") for name in ("gevent", "gunicorn")),
)


def of_workers(memory: int, pid: int | None) -> list[str]:
    """
    Return a text for each worker.

    :param memory: the descriptor of the memory that the workers share, int.
    :param pid: of the worker to ask, int; None: all.
    """
    watch = Watch(memory)
    rows = {row: values[OF_ONE, "pid"] for row, values in watch.running().items()}
    # All are asked before the first answer is waited for.
    asked = {row: watch.reports.ask(row) for row, one in rows.items() if pid in (None, one)}
    until = monotonic() + ANSWER_S
    texts = [[*_worker(watch.reports, row, rows[row], asked[row], until)] for row in asked]
    blocks = [each for each in watch.reports.events() if isinstance(each, BlockReport)]
    return [
        "\n".join([*text, *_blocks(blocks, rows[row])])
        for row, text in zip(asked, texts, strict=True)
    ]


def _worker(reports: ReportReader, row: int, pid: int, number: int, until: float) -> Iterator[str]:
    while (found := reports.stacks(row, number)) is None:
        # At once: the block may end before the time for an answer does.
        if (hub := reports.hub(row)) is not None and reports.late_s(row) > BLOCKED_S:
            yield from _blocked(pid, reports.late_s(row), hub)
            return
        if monotonic() >= until:
            yield f"worker {pid}: its hub has not run for {reports.late_s(row):.1f} s"
            yield "  nothing is known of its requests: GREENLINE_BLOCKED_HUB_MS may be 0"
            return
        sleep(LOOK_S)
    yield from _answered(found)


def _blocked(pid: int, seconds: float, hub: HubState) -> Iterator[str]:
    yield f"worker {pid}: its hub has been blocked for {seconds:.1f} s, here:"
    yield from _frames(hub.stack)
    yield f"  requests in progress: {len(hub.requests)}"
    for request in hub.requests:
        yield f"    {_request(request)}{_waits(request.waits_for)}"


def _blocks(blocks: Sequence[BlockReport], pid: int) -> Iterator[str]:
    """Name the last ones of a worker."""
    mine = [each for each in blocks if each.worker == pid][:MAX_BLOCKS]
    if mine:
        yield ""
        yield "  its hub was blocked before:"
    for each in mine:
        yield f"    {time() - each.time:.0f} s ago for {each.took_s:.2f} s in {each.function}"


def _answered(found: Stacks) -> Iterator[str]:
    # Those of the runtime itself have no frame of the application.
    own = [bool(_own_frames(stack)) for stack in found.stacks]
    serving = [each for each in found.greenlets if each.request is not None]
    others = [each for each in found.greenlets if each.request is None and own[each.stack]]
    more = f", left out: {found.left_out}" * bool(found.left_out)
    yield (
        f"worker {found.worker}: requests in progress: {len(serving)}, other greenlets of the "
        f"application: {len(others)}{more}"
    )
    places: dict[int, list[GreenletState]] = defaultdict(list)
    for each in (*serving, *others):
        places[each.stack].append(each)
    # Requests first, and where most are.
    order = sorted(
        places.values(), key=lambda here: (here[0].request is not None, len(here)), reverse=True
    )
    for here in order:
        yield ""
        waits_for = here[0].waits_for
        requests = [each.request for each in here if each.request is not None]
        requests.sort(key=lambda one: one.age_s or 0.0, reverse=True)
        if len(requests) == 1:
            yield f"  {_request(requests[0])}{_waits(waits_for)}"
        elif requests:
            yield f"  {len(requests)} requests{f' wait for {waits_for}' if waits_for else ''}"
            for one in requests[:MAX_LISTED]:
                yield f"  {_request(one)}"
            if len(requests) > MAX_LISTED:
                yield f"  and {len(requests) - MAX_LISTED} more"
        else:
            yield f"  {len(here)} in the background{_waits(waits_for)}"
        stack = found.stacks[here[0].stack]
        yield from _frames(_own_frames(stack) or stack)


def _own_frames(stack: Sequence[Frame]) -> Sequence[Frame]:
    """Return the frames from the application's first one on: the worker's are above each."""
    first = (number for number, (file, _, _) in enumerate(stack) if not file.startswith(RUNTIME))
    return stack[next(first, len(stack)) :]


def _request(one: RequestState) -> str:
    age = "" if one.age_s is None else f", {one.age_s:.2f} s old"
    route = f" (route {one.route})" if one.route not in ("-", one.path) else ""
    return f"{one.method} {one.path}{route}{age}"


def _waits(what: str) -> str:
    return f", waits for {what}" if what else ""


def _frames(stack: Sequence[Frame]) -> Iterator[str]:
    for file, line, function in stack:
        yield f'    File "{file}", line {line}, in {function}'
        if text := linecache.getline(file, line).strip():
            yield f"      {text}"

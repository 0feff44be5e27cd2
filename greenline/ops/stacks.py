"""Ask workers where their greenlets are, and write it as text."""

import linecache
from collections import defaultdict
from collections.abc import Iterator, Sequence
from time import monotonic, sleep

from greenline.ops.watch import Watch
from greenline.telemetry.counters import OF_ONE
from greenline.telemetry.reports import Frame, GreenletState, ReportReader, RequestState, Stacks

ANSWER_S = 2.0  # in which a worker answers, unless its hub is blocked
LOOK_S = 0.02
MAX_LISTED = 10  # requests at one place


def of_workers(memory: int, pid: int | None) -> list[str]:
    """
    Return a text for each worker.

    :param memory: the descriptor of the memory that the workers share, int.
    :param pid: of the worker to ask, int; None: all.
    """
    watch = Watch(memory)
    reports = watch.reports
    rows = {row: values[OF_ONE, "pid"] for row, values in watch.running().items()}
    # All are asked before the first answer is waited for.
    asked = {row: reports.ask(row) for row, one in rows.items() if pid in (None, one)}
    until = monotonic() + ANSWER_S
    return ["\n".join(_worker(reports, row, rows[row], asked[row], until)) for row in asked]


def _worker(reports: ReportReader, row: int, pid: int, number: int, until: float) -> Iterator[str]:
    while (found := reports.stacks(row, number)) is None and monotonic() < until:
        sleep(LOOK_S)
    if found is not None:
        yield from _answered(found)
        return
    yield f"worker {pid}: its hub has been blocked for {reports.late_s(row):.1f} s"
    hub = reports.hub(row)
    if hub is None:
        yield "  nothing is known of its requests: GREENLINE_BLOCKED_HUB_MS may be 0"
        return
    yield "  it is blocked here:"
    yield from _frames(hub.stack)
    yield f"  requests in progress: {len(hub.requests)}"
    for request in hub.requests:
        yield f"    {_request(request)}{_waits(request.waits_for)}"


def _answered(found: Stacks) -> Iterator[str]:
    serving = sum(each.request is not None for each in found.greenlets)
    more = f", {found.left_out} left out" * bool(found.left_out)
    yield (
        f"worker {found.worker}: {serving} greenlets serve requests, "
        f"{len(found.greenlets) - serving} run other code, {found.idle} are idle{more}"
    )
    places: dict[tuple[Frame, ...], list[GreenletState]] = defaultdict(list)
    for each in found.greenlets:
        places[tuple(each.stack)].append(each)
    # Requests first, and where most are.
    order = sorted(
        places.values(), key=lambda here: (here[0].request is not None, len(here)), reverse=True
    )
    for here in order:
        yield ""
        requests = [each.request for each in here if each.request is not None]
        waits = _waits(here[0].waits_for)
        if requests:
            requests.sort(key=lambda one: one.age_s or 0.0, reverse=True)
            if len(requests) > 1:
                yield f"  {len(requests)} requests{waits}"
            for one in requests[:MAX_LISTED]:
                yield f"  {_request(one)}{waits if len(requests) == 1 else ''}"
            if len(requests) > MAX_LISTED:
                yield f"  and {len(requests) - MAX_LISTED} more"
        else:
            yield f"  {len(here)} in the background{waits}"
        yield from _frames(here[0].stack)


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

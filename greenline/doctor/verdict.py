"""Turn what has happened into findings and a verdict."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path

from greenline.deploy.findings import Level, counted
from greenline.doctor.codes import (
    BLOCKS,
    COMPUTES,
    FAILS,
    GROWS,
    IDLE_IN_TRANSACTION,
    LEAVES_GREENLETS,
    LEFT_OPEN,
    MANY_ROUND_TRIPS,
    NO_DEADLINE,
    NO_IMPORT,
    NO_RUN,
    OUTSIDE_OF_A_POOL,
)
from greenline.doctor.examine import Examined
from greenline.doctor.findings import Block, Code, Finding
from greenline.doctor.observations import Observations, Site
from greenline.doctor.probe import INSTALLED, is_own
from greenline.doctor.project import Project
from greenline.doctor.trial import GTHREAD, MIN_GAIN, OURS, SYNC, Trial
from greenline.hub.watchdog import Stack

MIN_BLOCKS, LONG_BLOCK_S = 2, 0.2  # a single short one may be the machine's
MANY_TRIPS = 30
LONG_S = 5.0
MIN_GREENLETS = 5
GROWTH_KIB, MIN_REQUESTS = 10, 200  # for each request, of at least so many
MAX_BLOCKED = 0.2  # of the time: with more, the worker is slower than threads
MAX_COMPUTING = 0.8  # of the time: with more there is nothing to gain
MUCH_MORE = 2  # times as many requests fail: fewer may be chance
LEAKS = {LEFT_OPEN.code, IDLE_IN_TRANSACTION.code}
MAX_STATUSES = MAX_PATHS = 3
TOTAL = attrgetter("total_s")
# What requests do is not known then, and most findings are about them.
NO_REQUEST = (
    "No request was seen, so it is not known whether it is ready; those of tests are seen by the "
    "test clients of Flask (Werkzeug), Django and WebTest."
)
MAX_FRAMES = 4  # of a stack: so many of the application, and of what it calls


def findings(project: Project, trial: Trial, blocked: Iterable[Block]) -> Iterator[Finding]:
    """
    Yield what *trial* has found in *project*.

    :param blocked: what :func:`blocks` has returned.
    """
    yield from _blocks(blocked)
    for code, name in (
        (OUTSIDE_OF_A_POOL, "outside"),
        (LEFT_OPEN, "left_open"),
        (IDLE_IN_TRANSACTION, "in_transaction"),
    ):
        places: Counter[str] = sum(
            (Counter(getattr(each.connections, name)) for each in trial.observed), Counter()
        )
        for place, count in places.most_common():
            path, _, line = place.rpartition(":")
            shown = project.shown(Path(path)) if path else ""
            yield Finding(code, shown, int(line or 0), counted(count, "time"))
    # It works: each request closes its own, and the worker limits how many are in progress.
    if (count := sum(each.connections.of_django for each in trial.observed)) > 1:
        what = f"Django, whose CONN_MAX_AGE is 0: {counted(count, 'time')}"
        yield Finding(OUTSIDE_OF_A_POOL._replace(level=Level.REMARK), "", 0, what)
    for each in trial.observed:
        # The memory of tests grows by what they import and keep themselves.
        yield from _requests(each, has_memory=not trial.tests)
    yield from _failures(trial)


def blocks(project: Project, trial: Trial) -> list[Block]:
    """Return what has blocked the hub, by line and library, the longest in all first."""
    by_place: dict[tuple[str, int, str], dict[bool, Site]] = {}
    for site in (each for seen in trial.observed for each in seen.blocks.sites):
        place = *own_line(project, site.stack), library(project, site.stack)
        kinds = by_place.setdefault(place, {each: Site(site.stack, each) for each in (True, False)})
        merged = kinds[site.waits]
        merged.count += site.count
        merged.total_s += site.total_s
        merged.longest_s = max(merged.longest_s, site.longest_s)
    # A machine that stops for a moment makes what computes look like a wait: the longer one counts.
    longer = {place: max(kinds.values(), key=TOTAL) for place, kinds in by_place.items()}
    return [
        Block(*place, each.waits, each.count, each.total_s, each.longest_s,
              shortened(project, each.stack))
        for place, each in sorted(longer.items(), key=lambda item: -item[1].total_s)
        # Tests compute a lot, and by themselves.
        if each.waits or not trial.tests
    ]  # fmt: skip


def _blocks(blocked: Iterable[Block]) -> Iterator[Finding]:
    for each in blocked:
        if each.count >= MIN_BLOCKS or each.longest_s >= LONG_BLOCK_S:
            file, at, function = each.stack[-1]
            is_there = (file, at) == (each.path, each.line)
            what = (
                f"{each.library}: {counted(each.count, 'time')}, {each.total_s:.2f} s in all, "
                f"{each.longest_s * 1000:.0f} ms at most, in {function}"
                f"{'' if is_there else f' ({file}:{at})'}"
            )
            code = BLOCKS if each.waits else COMPUTES
            yield Finding(code, each.path, each.line, what, each.stack)


def _requests(seen: Observations, *, has_memory: bool) -> Iterator[Finding]:
    requests = seen.requests
    many = {path: trips for path, trips in requests.trips.items() if trips >= MANY_TRIPS}
    yield from _of_paths(MANY_ROUND_TRIPS, many, "{} round trips")
    if requests.greenlets >= max(MIN_GREENLETS, requests.count // 10):
        what = f"{requests.greenlets} of {counted(requests.count, 'request')}"
        yield Finding(LEAVES_GREENLETS, "", 0, what)
    grown_kib = requests.grown_kib if has_memory else 0
    if requests.count >= MIN_REQUESTS and grown_kib >= GROWTH_KIB * requests.count:
        each = grown_kib / requests.count
        yield Finding(GROWS, "", 0, f"{each:.0f} KiB for each of {requests.count} requests")
    is_limited = requests.timeout_s is not None
    late = {} if is_limited else {path: s for path, s in requests.longest_s.items() if s >= LONG_S}
    yield from _of_paths(NO_DEADLINE, late, "{:.0f} s")


def _of_paths(code: Code, values: Mapping[str, float], text: str) -> Iterator[Finding]:
    """Yield a finding for each of the worst paths, and one for the others."""
    # A path may have an id in it, so there may be as many as there were requests.
    worst = sorted(values.items(), key=itemgetter(1), reverse=True)
    for path, value in worst[:MAX_PATHS]:
        yield Finding(code, "", 0, f"{path}: {text.format(value)}")
    if len(worst) > MAX_PATHS:
        yield Finding(code, "", 0, f"{counted(len(worst) - MAX_PATHS, 'path')} more")


def _failures(trial: Trial) -> Iterator[Finding]:
    if reason := _invalid(trial):
        yield Finding(NO_RUN, "", 0, reason)
        return
    if trial.tests:
        _, (patched, _) = trial.tests
        if patched:
            yield Finding(FAILS, "", 0, f"the tests end with {patched}, and with 0 unpatched")
    if trial.loads:
        ours, threads = trial.loads[OURS], trial.loads[GTHREAD]
        total, others = ours.statuses.total(), threads.statuses.total()
        # Of all: the faster one has more of those that fail in any case.
        if ours.failed * others > MUCH_MORE * threads.failed * total:
            what = f"{ours.failed} of {total} requests, {threads.failed} of {others} on threads"
            yield Finding(FAILS, "", 0, what)


def _invalid(trial: Trial) -> str:
    """Return why a trial says nothing about the application, one sentence; empty: it does."""
    if trial.tests and (status := trial.tests[0][0]):
        return f"the tests end with {status} as they are"
    loads = trial.loads.values()
    if loads and all(2 * each.different.total() >= each.statuses.total() for each in loads):
        different = sum((each.different for each in loads), Counter[tuple[int, int]]())
        listed = ", ".join(
            f"{own or 'none'} in place of {logged} ({counted(count, 'time')})"
            for (logged, own), count in different.most_common(MAX_STATUSES)
        )
        return f"the answers are not those of the log: {listed or 'there are none'}"
    return ""


def own_line(project: Project, stack: Stack) -> tuple[str, int]:
    """Return the file and the line of the innermost frame of the project; "" without one."""
    for path, line, _ in reversed(stack):
        if _is_own(project, path):
            return project.shown(Path(path)), line
    return "", 0


def shortened(project: Project, stack: Stack) -> tuple[tuple[str, int, str], ...]:
    """Return the innermost frames of the project and of what it calls, as findings show them."""
    own = [number for number, (path, *_) in enumerate(stack) if _is_own(project, path)]
    called = range(own[-1] + 1 if own else 0, len(stack))
    kept = (stack[number] for number in (*own[-MAX_FRAMES:], *called[-MAX_FRAMES:]))
    return tuple(
        (project.shown(Path(path)) if _is_own(project, path) else _short(path), line, function)
        for path, line, function in kept
    )


def _is_own(project: Project, path: str) -> bool:
    return is_own(path, str(project.folder))


def library(project: Project, stack: Stack) -> str:
    """Return the package that the innermost frame of *stack* belongs to."""
    path = stack[-1][0]
    if INSTALLED in path:
        return path.rpartition(INSTALLED)[2].partition(os.sep)[0].removesuffix(".py")
    if _is_own(project, path):
        return "the application"
    return Path(path).stem


def _short(path: str) -> str:
    return path.rpartition(INSTALLED)[2]


def verdict(project: Project, trial: Trial, found: Iterable[Finding]) -> str:
    """
    Say whether the application is ready for a green worker, and what it gains.

    :param found: all findings, also those of its code.
    :returns: one paragraph, str; empty where the trial says nothing about it.
    """
    if _invalid(trial):
        return ""
    seconds = sum(each.blocks.seconds for each in trial.observed) or 1.0
    waits = sum(each.blocks.waits_s for each in trial.observed) / seconds
    computes = sum(each.blocks.computes_s for each in trial.observed) / seconds
    gain, ratio = _gain(trial), _ratio(trial, GTHREAD)
    is_blocked = waits > MAX_BLOCKED and ratio <= 1
    changes = _changes(found)
    leaks = [code for code in changes if code.code in LEAKS]
    # Others wait for what is never given back, on threads as well if they get as far.
    if leaks and not is_blocked and ratio < MIN_GAIN:
        listed = " ".join(f"{code.code}: {code.fix}" for code in leaks)
        return f"No verdict before this is mended: connections stay in use. {listed}{gain}"
    # What computes all the time gets a core for each worker, and threads may share several now.
    if is_blocked or (ratio < MIN_GAIN and computes <= MAX_COMPUTING):
        reason = "it is slower than with threads"
        if max(waits, computes) > MAX_BLOCKED:
            is_wait = waits > MAX_BLOCKED
            sites = [site for seen in trial.observed for site in seen.blocks.sites]
            site = max((each for each in sites if each.waits == is_wait), key=TOTAL)
            share, kind = (
                (waits, "waits that block the hub") if is_wait else (computes, "computing")
            )
            name = library(project, site.stack)
            reason = f"{share:.0%} of the time is spent in {kind}, most of it in {name}"
        return f"Not for green threads: {reason}; use gthread.{gain}"
    computing = ""
    if computes > MAX_COMPUTING and not trial.tests:
        computing = f" It computes {computes:.0%} of the time: have a worker for each core."
    if not changes and not _requests_of(trial):
        return f"{NO_REQUEST}{gain}"
    if not changes:
        return f"Ready.{gain}{computing}"
    listed = " ".join(f"{code.code}: {code.fix}" for code in changes)
    return f"{_ready_after(changes)}. {listed}{gain}{computing}"


def _requests_of(trial: Trial) -> int:
    """Return how many requests were answered or seen."""
    answered = trial.loads[OURS].statuses.total() if trial.loads else 0
    return answered + sum(each.requests.count for each in trial.observed)


def as_read(examined: Examined) -> str:
    """
    Say whether an application that has not run is ready.

    :returns: one paragraph, str; empty where a file was not read.
    """
    if examined.unreadable or any(each.code == NO_IMPORT for each in examined.findings):
        return ""
    if not examined.lines:
        return "Not one line of the application was read: --package names an installed one."
    changes = _changes(examined.findings)
    codes = ", ".join(dict.fromkeys(code.code for code in changes))
    ready = f"{_ready_after(changes)} ({codes})" if changes else "Ready"
    return (
        f"{ready}, as far as it was read. "
        "--run, --replay and --serve show what happens when it runs."
    )


def _changes(found: Iterable[Finding]) -> list[Code]:
    """Return the codes of the errors and warnings of *found*, errors first."""
    codes = dict.fromkeys(each.code for each in found if each.level != Level.REMARK)
    return sorted(codes, key=lambda code: (code.level != Level.ERROR, code.code))


def _ready_after(changes: Sequence[Code]) -> str:
    count = "this change" if len(changes) == 1 else f"these {len(changes)} changes"
    return f"Ready after {count}"


def _ratio(trial: Trial, worker: str) -> float:
    """Return the answers in relation to those of *worker*; 1 where none were counted."""
    if not trial.loads:
        return 1.0
    ours, others = (trial.loads[each].answers_s for each in (OURS, worker))
    return ours / others if others else math.inf


def _gain(trial: Trial) -> str:
    if trial.loads:
        ours, threads, sync = (trial.loads[each].answers_s for each in (OURS, GTHREAD, SYNC))
        ratios = f"{_ratio(trial, GTHREAD):.2f} x and {_ratio(trial, SYNC):.2f} x"
        return (
            f" {ours:.0f} answers a second, which are {ratios} those of gthread with 8 threads "
            f"({threads:.0f}) and of sync ({sync:.0f})."
        )
    if trial.tests:
        (_, plain_s), (_, patched_s) = trial.tests
        return f" Its tests take {patched_s:.1f} s patched and {plain_s:.1f} s as they are."
    return " No gain was measured: --replay measures it."

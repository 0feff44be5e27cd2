"""greenline.doctor.verdict: the findings and the verdict that follow from figures."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from greenline.doctor import verdict
from greenline.doctor.codes import LEFT_OPEN, NO_IMPORT, NO_RUN, NO_TIMEOUT, SLOW_IMPORT
from greenline.doctor.examine import Examined
from greenline.doctor.findings import Block, Finding
from greenline.doctor.observations import Blocks, Connections, Observations, Requests, Site
from greenline.doctor.project import Project
from greenline.doctor.trial import GTHREAD, OURS, SYNC, Load, Trial

FOLDER = Path("/srv/shop")
PROJECT = Project(FOLDER)
DRIVER = "/venv/lib/python3.11/site-packages/driver/core.py"
STACK = [(f"{FOLDER}/views.py", 12, "index"), (DRIVER, 5, "query")]


def seen(*sites: Site, requests: Requests | None = None, **places: dict[str, int]) -> Observations:
    waits = sum(site.total_s for site in sites if site.waits)
    computes = sum(site.total_s for site in sites if not site.waits)
    blocks = Blocks(10.0, waits, computes, list(sites))
    return Observations(blocks, requests or Requests(), Connections(**places))


def loads(
    ours: int, gthread: int, sync: int, failed: int = 0, threads_failed: int = 0
) -> dict[str, Load]:
    counts = {OURS: ours, GTHREAD: gthread, SYNC: sync}
    found = {name: Load(1.0, Counter({(200, 200): count})) for name, count in counts.items()}
    found[OURS].statuses[200, 500] += failed
    found[GTHREAD].statuses[200, 500] += threads_failed
    return found


def findings(trial: Trial) -> Iterator[Finding]:
    return verdict.findings(PROJECT, trial, verdict.blocks(PROJECT, trial))


def found(trial: Trial) -> list[tuple[str, str, int]]:
    return [(each.code.code, each.path, each.line) for each in findings(trial)]


def site(waits: bool = True, count: int = 5, total_s: float = 0.5, longest_s: float = 0.1) -> Site:
    return Site(STACK, waits, count, total_s, longest_s)


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ([site()], ["GL401"]),
        ([site(waits=False)], ["GL402"]),
        ([site(total_s=0.2), site(waits=False, total_s=0.9)], ["GL402"]),
        ([site(count=1, longest_s=0.1)], []),
        ([site(count=1, longest_s=0.5)], ["GL401"]),
    ],
    ids=["waits", "computes", "the longer one counts", "one short one", "one long one"],
)
def test_blocks_are_found_at_the_applications_line(sites: list[Site], expected: list[str]) -> None:
    """A single short one may be the machine's."""
    assert found(Trial([seen(*sites)])) == [(code, "views.py", 12) for code in expected]


def test_a_block_names_the_library_and_the_figures() -> None:
    """Of two processes together."""
    (finding,) = findings(Trial([seen(site()), seen(site(longest_s=0.2))]))
    assert finding.what == (
        "driver: 10 times, 1.00 s in all, 200 ms at most, in query (driver/core.py:5)"
    )


def test_a_single_short_block_is_no_finding_and_is_known() -> None:
    """With its stack; of tests what waits alone."""
    once = site(count=1, total_s=0.03, longest_s=0.03)
    short = Site(STACK[:1], False, 1, 0.02, 0.02)
    trial = Trial([seen(short, once)])
    assert found(trial) == []
    waits = Block("views.py", 12, "driver", True, 1, 0.03, 0.03, (
        ("views.py", 12, "index"), ("driver/core.py", 5, "query"),
    ))  # fmt: skip
    computes = Block(
        "views.py", 12, "the application", False, 1, 0.02, 0.02, (("views.py", 12, "index"),)
    )
    assert verdict.blocks(PROJECT, trial) == [waits, computes]
    trial.tests = [(0, 1.0), (0, 1.0)]
    assert verdict.blocks(PROJECT, trial) == [waits]


def test_a_block_has_its_stack() -> None:
    """The innermost calls of the application and of what it calls, as findings show them."""
    own = [(f"{FOLDER}/{name}.py", 1, name) for name in "abcde"]
    library = [(DRIVER, number, "read") for number in range(1, 7)]
    stack = [("/usr/lib/gunicorn.py", 1, "run"), *own, *library]
    (finding,) = findings(Trial([seen(Site(stack, True, 5, 0.5, 0.1))]))
    assert finding.stack == (
        ("b.py", 1, "b"), ("c.py", 1, "c"), ("d.py", 1, "d"), ("e.py", 1, "e"),
        *(("driver/core.py", number, "read") for number in range(3, 7)),
    )  # fmt: skip
    (finding,) = findings(Trial([seen(Site(library, True, 5, 0.5, 0.1))]))
    assert [line for _, line, _ in finding.stack] == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        (Requests(9, trips={"/a": 29, "/b": 30}), "GL406"),
        (Requests(40, greenlets=5), "GL407"),
        (Requests(400, grown_kib=4000), "GL408"),
        (Requests(9, longest_s={"/a": 6.0, "/b": 1.0}), "GL409"),
    ],
    ids=["trips", "greenlets", "grows", "long"],
)
def test_requests_beyond_a_limit(requests: Requests, expected: str) -> None:
    """One finding for all requests."""
    assert [code for code, *_ in found(Trial([seen(requests=requests)]))] == [expected]


@pytest.mark.parametrize(
    "requests",
    [
        Requests(9, trips={"/a": 29}),
        Requests(400, greenlets=5),
        Requests(100, grown_kib=4000),
        Requests(9, longest_s={"/a": 4.9}),
        Requests(9, longest_s={"/a": 6.0}, timeout_s=5.0),
    ],
    ids=["trips", "few greenlets", "too few to tell", "not long", "a deadline"],
)
def test_requests_below_each_limit(requests: Requests) -> None:
    """They are no finding."""
    assert found(Trial([seen(requests=requests)])) == []


def test_what_tests_compute_is_not_the_applications() -> None:
    """They compute a lot, and by themselves."""
    assert found(Trial([seen(site(waits=False))], tests=[(0, 1.0), (0, 1.0)])) == []


def test_memory_that_tests_keep_is_not_the_applications() -> None:
    """They import and remember things themselves."""
    grown = seen(requests=Requests(400, grown_kib=4000))
    assert found(Trial([grown], tests=[(0, 1.0), (0, 1.0)])) == []


def test_connections_are_found_where_they_are_made() -> None:
    """Of all processes together."""
    places: Any = {
        "outside": {f"{FOLDER}/views.py:3": 7},
        "left_open": {f"{FOLDER}/views.py:3": 2},
        "in_transaction": {f"{FOLDER}/jobs.py:8": 1},
    }
    assert found(Trial([seen(**places)])) == [
        ("GL403", "views.py", 3), ("GL404", "views.py", 3), ("GL405", "jobs.py", 8),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("trial", "is_found"),
    [
        (Trial(tests=[(0, 1.0), (1, 1.0)]), True),
        (Trial(loads=loads(9, 9, 9, failed=1)), True),
        (Trial(loads=loads(9, 9, 9)), False),
        (Trial(loads=loads(900, 90, 9, failed=100, threads_failed=10)), False),
        (Trial(loads=loads(900, 99, 9, failed=100, threads_failed=1)), True),
    ],
    ids=["tests", "requests", "nothing", "the same share", "a larger share"],
)
def test_what_fails_here_alone(trial: Trial, is_found: bool) -> None:
    """And not what fails in any case."""
    assert ("GL410", "", 0) in found(trial) or not is_found
    assert bool(found(trial)) == is_found


def answers(**statuses: int) -> dict[str, Load]:
    """Return loads in which each worker gives these answers, in place of 200."""
    counts = {(200, int(status[1:])): count for status, count in statuses.items()}
    return {name: Load(1.0, Counter(counts)) for name in (OURS, GTHREAD, SYNC)}


@pytest.mark.parametrize(
    ("trial", "reason"),
    [
        (Trial([seen()], tests=[(2, 0.1), (2, 1.2)]), "the tests end with 2 as they are"),
        (Trial([seen()], tests=[(5, 0.1), (0, 1.2)]), "the tests end with 5 as they are"),
        (Trial([seen()], loads(0, 0, 0)), "the answers are not those of the log: there are none"),
        (
            Trial([seen()], answers(_400=70, _200=50)),
            "the answers are not those of the log: 400 in place of 200 (210 times)",
        ),
        (
            Trial([seen()], answers(_302=2, _0=1)),
            "the answers are not those of the log: 302 in place of 200 (6 times), "
            "none in place of 200 (3 times)",
        ),
    ],
    ids=["status", "no tests", "no answers", "a status", "two"],
)
def test_a_trial_that_says_nothing_gives_no_verdict(trial: Trial, reason: str) -> None:
    """And one error, which says why."""
    (finding,) = findings(trial)
    assert (finding.code, finding.what) == (NO_RUN, reason)
    assert verdict.verdict(PROJECT, trial, [finding]) == ""


def test_some_answers_may_differ() -> None:
    """What the log has may have been deleted since."""
    trial = Trial([seen()], answers(_404=4, _200=6))
    assert found(trial) == []
    assert verdict.verdict(PROJECT, trial, []).startswith("Ready. 6 answers a second")


@pytest.mark.parametrize(
    ("sites", "ours", "said"),
    [
        ([], 89, "Not for green threads: it is slower than with threads; use gthread. 89 answers"),
        ([], 91, "Ready. 91 answers"),
        (
            [site(waits=False, total_s=5.0)],
            40,
            "Not for green threads: 50% of the time is spent in computing, most of it in driver",
        ),
        ([site(waits=False, total_s=9.0)], 40, "Ready. 40 answers"),
    ],
    ids=["slower", "as fast", "computes", "computes only"],
)
def test_what_is_slower_is_not_for_green_threads(sites: list[Site], ours: int, said: str) -> None:
    """Unless it computes all the time, for which more workers are the remedy."""
    assert verdict.verdict(PROJECT, Trial([seen(*sites)], loads(ours, 100, 10)), []).startswith(
        said
    )


def test_what_leaks_connections_gets_no_verdict_on_its_speed() -> None:
    """The others wait for what is never given back; threads may fail at once instead."""
    trial, leak = Trial([seen()], loads(2, 100, 10)), Finding(LEFT_OPEN, "views.py", 3, "93 times")
    said = verdict.verdict(PROJECT, trial, [leak])
    assert said.startswith("No verdict before this is mended: connections stay in use. GL404: ")
    faster = Trial([seen()], loads(120, 100, 10))
    assert verdict.verdict(PROJECT, faster, [leak]).startswith("Ready after this change. GL404: ")


def test_traffic_of_ones_own_measures_no_gain() -> None:
    """There is nothing to compare it with, and it says what does."""
    said = verdict.verdict(PROJECT, Trial([seen(requests=Requests(1))]), [])
    assert said == "Ready. No gain was measured: --replay measures it."


def test_it_is_not_ready_where_no_request_was_seen() -> None:
    """Tests that ask by another client than those that are observed, or traffic that never came."""
    trial = Trial([seen()], tests=[(0, 1.0), (0, 2.0)])
    said = verdict.verdict(PROJECT, trial, [])
    assert said.startswith("No request was seen, so it is not known whether it is ready")
    assert said.endswith("Its tests take 2.0 s patched and 1.0 s as they are.")


@pytest.mark.parametrize(
    ("requests", "code", "worst"),
    [
        (Requests(9, trips={f"/{n}": 30 + n for n in range(9)}), "GL406", "/8: 38 round trips"),
        (Requests(9, longest_s={f"/{n}": 5.0 + n for n in range(9)}), "GL409", "/8: 13 s"),
    ],
    ids=["trips", "long"],
)
def test_of_many_paths_the_worst_are_named(requests: Requests, code: str, worst: str) -> None:
    """They may have ids in them."""
    result = list(findings(Trial([seen(requests=requests)])))
    assert [each.code.code for each in result] == [code] * 4
    assert (result[0].what, result[-1].what) == (worst, "6 paths more")


def test_what_cannot_be_imported_is_not_ready_after_one_change(tmp_path: Path) -> None:
    """What else is wrong with it is not known."""
    examined = Examined([Finding(NO_IMPORT, "a.py", 1, "")], lines=9, folder=tmp_path)
    assert verdict.as_read(examined) == ""
    assert verdict.as_read(Examined(lines=9)).startswith("Ready, as far as it was read.")


def test_it_can_say_no() -> None:
    """Where waits that block take a fifth of the time, and threads are as fast."""
    trial = Trial([seen(site(total_s=6.1))], loads(40, 100, 10))
    said = verdict.verdict(PROJECT, trial, findings(trial))
    assert said.startswith("Not for green threads: 61% of the time is spent in waits")
    assert "most of it in driver; use gthread." in said
    assert "0.40 x and 4.00 x those of gthread with 8 threads (100) and of sync (10)" in said


def test_blocks_that_cost_nothing_are_a_change_and_no_refusal() -> None:
    """Where it is faster than threads all the same."""
    trial = Trial([seen(site(total_s=6.1))], loads(200, 100, 10))
    said = verdict.verdict(PROJECT, trial, findings(trial))
    assert said.startswith("Ready after this change. GL401: Take a library that waits in Python")


def test_ready_after_changes_names_each_kind_once() -> None:
    """Errors and warnings, and no remark."""
    changes = [Finding(NO_TIMEOUT, "a.py", 1, ""), Finding(NO_TIMEOUT, "a.py", 2, "")]
    remark = Finding(SLOW_IMPORT, "", 0, "")
    trial = Trial([seen()], loads(200, 100, 10))
    said = verdict.verdict(PROJECT, trial, [*changes, remark])
    assert said.startswith(f"Ready after this change. GL213: {NO_TIMEOUT.fix} 200 answers")
    assert verdict.verdict(PROJECT, trial, [remark]).startswith("Ready. 200 answers a second")


def test_what_computes_gains_by_workers() -> None:
    """It is said beside the figures."""
    trial = Trial([seen(site(waits=False, total_s=9.0))], loads(100, 100, 100))
    said = verdict.verdict(PROJECT, trial, [])
    assert said.endswith("It computes 90% of the time: have a worker for each core.")

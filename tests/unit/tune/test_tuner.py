"""What is measured in which order and concluded from it, on a service that is a number."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from greenline.budget.plan import PostgresFacts
from greenline.doctor.serving import TrialError
from greenline.errors import ConfigError
from greenline.tune import idle, machine, report, screen, server, timetable, tuner
from greenline.tune import run as run_module
from greenline.tune.check import Checked
from greenline.tune.generator import Outcome
from greenline.tune.load import Load, Request
from greenline.tune.measure import BrokenService, Meter, Round
from greenline.tune.observe import Look, Observed
from greenline.tune.results import Machine, Objective, Result
from greenline.tune.run import Asked, Stopped
from greenline.tune.server import Configuration, Server
from greenline.tune.timetable import Timetable
from greenline.tune.tuner import Tuner
from tests.helpers import tuned

OBJECTIVE = Objective(p99_s=0.2, errors=0.001)
SHARES = tuned.step(1, 1.0, postgres_s=0.0).shares  # of 6 ms
GET = Request("GET", "/")


class Workers:
    """Stand for the workers of a gunicorn of ours."""

    def __init__(self, number: int = 1, *pools: str) -> None:
        self.number, self._pools = number, pools

    def answered(self) -> int:
        return 0

    def look(self) -> Look:
        return Look(0.0, {}, 0, {})

    def pools(self) -> Sequence[str]:
        return self._pools

    def running(self) -> range:
        return range(self.number)

    def are_idle(self) -> bool:
        return True

    def value(self, *_: str) -> float:
        return 10.0


class Service(Meter):
    """
    Answers each request in 6 ms up to a rate, and refuses the others.

    :param can: returns the rate of its configuration.
    :param ends: is called when a server has ended.
    """

    def __init__(
        self, can: Callable[["Service"], float], ends: Callable[["Service"], None] | None = None
    ) -> None:
        self._can, self._ends = can, ends
        self._objective = OBJECTIVE
        self.workers: Workers | None = Workers()
        self.now = Configuration(1)
        self.offered: list[tuple[Configuration, float]] = []
        self.doing, self.time_s = "", 0.0
        self.cpu = 0.1  # of the generator

    def does(self, part: str) -> bool:
        return self.doing.startswith(part)

    def say(self, what: str) -> None:
        self.doing = what

    def __exit__(self, *_: object) -> None:
        pass

    @contextmanager
    def started(
        self, _: str, __: Path, configuration: Configuration, ___: Sequence[str] = ()
    ) -> Iterator[Server]:
        self.now, self.time_s = configuration, self.time_s + 1.0
        yield Server("http://service", self.workers)  # type: ignore[arg-type]
        if self._ends is not None:
            self._ends(self)

    def offer(
        self, url: str, rate: float, seconds: float, warm_up_s: float, workers: Any,
        *, is_spared: bool = True,
    ) -> Round:  # fmt: skip
        self.offered.append((self.now, rate))
        self.time_s += warm_up_s + seconds + 0.1
        number = round(rate * seconds)
        good = min(number, round(self._can(self) * seconds))
        if is_spared and good * 2 < number:
            raise BrokenService(f"at {rate:.0f}/s")
        outcome = Outcome(
            {200: good, 503: number - good}, [0.006] * good, good, 0.0, self.cpu, False, 0
        )
        seen = Observed(0.5, 0.0, 90.0, SHARES) if workers is not None else None
        return Round(rate, seconds, outcome, seen, 0)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Tuner, Result]]:
    """Returns a function that measures a service."""

    def measure(
        service: Service,
        url: str | None = None,
        fails: type[BaseException] | None = None,
        **asked: Any,
    ) -> tuple[Tuner, Result]:
        target = None if url is not None else "shop:app"
        given: dict[str, Any] = {"total_s": 600.0, "max_rate": 10_000.0, **asked}

        def clock() -> float:
            return service.time_s

        monkeypatch.setattr(run_module, "monotonic", clock)
        monkeypatch.setattr(run_module, "Timetable", lambda total_s: Timetable(total_s, clock))
        load = Load([GET])
        found = Tuner(Asked(target, tmp_path, url, True, load, {}, OBJECTIVE, **given), service.say)
        monkeypatch.setattr(server, "started", service.started)
        monkeypatch.setattr(server, "running", lambda *_, **__: Server("", service.workers))  # type: ignore[arg-type]
        monkeypatch.setattr(tuner, "Meter", lambda *_: service)
        with nullcontext() if fails is None else pytest.raises(fails):
            found.run()
        return found, found.result()

    for name in ("WEB_CONCURRENCY", "DATABASE_URL", "MONGODB_URI"):
        monkeypatch.delenv(name, raising=False)
    here = Machine(cores=2, memory_mib=4096, python="3.11.7", was_busy=0.0)
    monkeypatch.setattr(tuner, "machine", lambda: here)
    monkeypatch.setattr(machine, "cores", lambda: [0, 1])
    monkeypatch.setattr(tuner, "cores_of_workers", lambda: [0, 1])
    monkeypatch.setattr(tuner, "check", lambda _, load, *__: Checked(load, GET, 0.006, 0.006, []))
    monkeypatch.setattr(tuner, "_has_answered", lambda *_: True)
    monkeypatch.setattr(
        idle, "steps", lambda *_: iter([tuned.step(count, 0.0) for count in (0, 100)])
    )
    return measure


def knee_of(result: Result) -> float:
    sweep = result.sweep("rate")
    assert sweep is not None
    knee = sweep.knee(OBJECTIVE)
    assert knee is not None
    return knee.offered_rate


def test_what_a_server_that_runs_refuses_is_its_limit(run: Any) -> None:
    """A rate at which it refuses most is not offered again; the search goes on below it."""
    service = Service(lambda one: 500.0 * (one.offered[-1][1] <= 500))
    service.workers = Workers(3)
    _, result = run(service, "http://127.0.0.1")
    assert knee_of(result) == pytest.approx(500, rel=0.08)
    assert result.settings == {"WEB_CONCURRENCY": "3"}
    assert [rate for _, rate in service.offered if rate > 600] == [800, 750]
    assert [one for one in result.warnings if "GREENLINE_OPS_BIND" in one]
    run(Service(lambda _: 0.0), "http://127.0.0.1", BrokenService)


def by_workers(service: Service) -> float:
    """Return the rate of two processors."""
    return 500.0 * min(2, service.now.workers)


def test_limits_are_around_what_a_worker_had_in_progress(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of workers of that time, and under more than the best number can do."""
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    _, result = run(Service(by_workers))
    assert result.settings["WEB_CONCURRENCY"] == "2"
    limit, workers = result.sweep("limit"), result.sweep("workers")
    found = result.recommended("max_in_progress")
    assert "At the rough knee a worker has 3.0 requests" in found.measured  # 500/s of 6 ms
    assert {step.setting for step in limit.steps} == {6, 10, 12, 24}  # 10 of auto, 24 of 50 ms
    assert limit.steps[0].offered_rate >= 1.5 * max(step.good_rate for step in workers.steps)


def test_of_workers_that_are_not_seen_nothing_is_said(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither their number nor their memory, on the screen, in the page and in the settings."""
    service = Service(by_workers)
    service.workers = None
    _, result = run(service, "http://127.0.0.1")
    assert result.settings == {}
    assert [one.name for one in result.recommendations] == ["keepalive"]
    screen.show(result)
    row = next(line for line in capsys.readouterr().out.splitlines() if " 6.0 " in line)
    assert row.split()[-3:] == ["-", "-", "-"]
    assert report._row(result.sweeps[0].steps[0])[9:12] == ["-", "-", "-"]


@pytest.mark.parametrize(("size", "sizes"), [("20", [1, 2]), ("", [1, 2, 4, 8, 16])])
def test_the_sizes_of_a_pool_fit_behind_a_pgbouncer(
    run: Any, monkeypatch: pytest.MonkeyPatch, size: str, sizes: list[float]
) -> None:
    """They are a part of PGBOUNCER_POOL_SIZE; where that is not set, all are tried."""
    monkeypatch.setenv("PGBOUNCER_POOL_SIZE", size)
    monkeypatch.setattr(tuner, "_facts", lambda: PostgresFacts(100, behind_pgbouncer=True))
    service = Service(by_workers)
    service.workers = Workers(1, "postgres")
    _, result = run(service)
    assert [step.setting for step in result.sweep("pool").steps] == sizes
    assert any("PGBOUNCER_POOL_SIZE" in one for one in result.warnings) == (not size)


def test_the_knee_holds_in_its_own_rounds(run: Any) -> None:
    """A rate that meets the objective in the search and in one of three rounds is no knee."""

    def can(service: Service) -> float:
        rate = service.offered[-1][1]
        tries = sum(one == rate for _, one in service.offered)
        return 500.0 if rate < 400 or tries < 3 else 300.0

    _, result = run(Service(can), "http://127.0.0.1", max_rate=500.0)
    assert knee_of(result) == pytest.approx(0.92 * 500)
    assert not any("--max-rate" in one for one in result.warnings)
    _, result = run(Service(lambda _: 600.0), "http://127.0.0.1", max_rate=500.0)
    assert any("still met at --max-rate, 500/s" in one for one in result.warnings)
    assert all(len(step.rounds) <= 3 for step in result.sweep("rate").steps)


def test_a_proof_that_misses_is_said(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """On the screen and in the page; nothing is recommended."""
    found, result = run(Service(lambda one: by_workers(one) * (0.2 if one.does("proof") else 1)))
    assert not result.verification.met
    assert result.recommendations == []
    assert not found.is_complete
    screen.show(result)
    assert "the objective was missed" in capsys.readouterr().out
    assert "The objective was missed." in report._verified(result).notes[0]


@pytest.mark.parametrize("part", ["rate", "searching the rate"])
def test_settings_whose_rate_misses_are_not_recommended(run: Any, part: str) -> None:
    """Neither where the search fails nor where no rate holds in three rounds."""

    def can(service: Service) -> float:
        is_last = any(one.limit is None and one.max_wait_s == 0.1 for one, _ in service.offered)
        return 0.0 if service.does(part) and is_last else by_workers(service)

    _, result = run(Service(can), fails=ConfigError)
    assert result.sweep("limit") is not None
    assert result.recommendations == []
    # What is left is the rough rate, of the environment's settings.
    assert knee_of(result) == pytest.approx(1000, rel=0.25)
    assert "GREENLINE_MAX_WAIT" not in filter(result.settings.get, result.settings)


def test_an_interrupted_search_keeps_the_rough_curve(run: Any) -> None:
    """Ctrl-C after a first rate that was missed leaves a knee."""

    def can(service: Service) -> float:
        if not service.does("searching the rate") or service.now.max_wait_s != 0.1:
            return by_workers(service)
        if service.offered[-1] == service.offered[-2]:
            raise KeyboardInterrupt
        return 0.0

    _, result = run(Service(can), fails=KeyboardInterrupt)
    assert knee_of(result) == pytest.approx(1000, rel=0.25)


def test_nothing_is_concluded_from_the_knee_of_other_settings(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without time for the rate of what was found, there is no proof and nothing that needs it."""
    monkeypatch.setitem(timetable.PARTS, "rate", 0.0)
    found, result = run(Service(by_workers), fails=Stopped)
    assert {one.name for one in result.recommendations} == {"workers", "max_in_progress"}
    assert result.verification is None
    assert not found.is_complete
    assert any("no time for the rate" in one for one in result.warnings)


def test_the_defaults_of_gunicorn_may_win(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """They are offered as much as the recommendation is, and the best rates are compared."""
    _, result = run(Service(lambda one: 800.0 if one.now.workers < 5 else 850.0))
    assert result.verification.ours.good_rate == pytest.approx(800, rel=0.01)
    assert result.verification.against_defaults.good_rate == pytest.approx(850, rel=0.01)
    assert result.verification.against_defaults.setting == 5
    screen.show(result)
    assert "/s, 0.94 times; " in " ".join(capsys.readouterr().out.split())


def test_a_second_search_has_a_curve_of_its_own(run: Any) -> None:
    """A low rate that was missed in a stall does not end it."""
    stalls = iter([0.0] * 4)

    def can(service: Service) -> float:
        is_last = service.does("searching the rate") and service.now.max_wait_s == 0.1
        return next(stalls, by_workers(service)) if is_last else by_workers(service)

    _, result = run(Service(can))
    assert knee_of(result) == pytest.approx(1000, rel=0.08)


def test_a_setting_that_breaks_is_not_counted(run: Any) -> None:
    """Also where it does so after its last round; not all was measured then."""

    def ends(service: Service) -> None:
        if service.does("workers 1, round 3"):
            raise TrialError("gunicorn has ended")

    found, result = run(Service(by_workers, ends))
    assert [step.setting for step in result.sweep("workers").steps] == [2]
    assert "workers 1 was left out: gunicorn has ended." in result.warnings
    assert not found.is_complete


def test_idle_sockets_that_were_not_measured_are_missing(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is not complete then."""

    def steps(*_: object) -> None:
        raise OSError("the worker was replaced")

    monkeypatch.setattr(idle, "steps", steps)
    found, result = run(Service(by_workers))
    assert "What idle sockets cost was not measured: the worker was replaced." in result.warnings
    assert not found.is_complete


def test_all_that_is_measured_is_complete(run: Any) -> None:
    """Within the time that it has."""
    found, result = run(Service(by_workers))
    assert (found.is_complete, result.verification.met) == (True, True)
    assert result.total_s < 600


def test_a_largest_setting_that_does_not_serve_is_no_end(run: Any) -> None:
    """It is offered what was found until then."""

    def ends(service: Service) -> None:
        if service.does("what is too much"):
            raise TrialError("gunicorn has ended")

    found, result = run(Service(by_workers, ends))
    assert result.sweep("workers") is not None
    assert any("gunicorn has ended" in one for one in result.warnings)
    assert not found.is_complete


def test_a_sweep_that_was_not_overloaded_is_named(run: Any) -> None:
    """Its figures are those of the load: --max-rate is less than the service can do."""
    limit = "The load was the limit in the sweep of the workers: more than 800/s was not offered"
    _, result = run(Service(by_workers), max_rate=800.0)
    assert any(one.startswith(limit) for one in result.warnings)
    _, result = run(Service(by_workers))
    assert not any(one.startswith("The load was the limit") for one in result.warnings)


def test_a_generator_that_was_the_limit_is_named(run: Any) -> None:
    """Of each sweep, and of the rate."""
    service = Service(by_workers)
    service.cpu = 1.0
    _, result = run(service)
    found = [one.partition(" the load generator")[0] for one in result.warnings if "gener" in one]
    assert found == ["In the sweep of the workers", "In the sweep of the limit", "At the knee"]

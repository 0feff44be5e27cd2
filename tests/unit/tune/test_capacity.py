"""How many hosts a load needs, on figures that can be checked by hand."""

import dataclasses
import math

import msgspec
import pytest
from msgspec.structs import replace

from greenline.budget.plan import Deployment, PostgresFacts, postgres_plan
from greenline.errors import ConfigError
from greenline.tune import capacity, results, usl
from greenline.tune.capacity import Application, Host, Row
from greenline.tune.results import Machine, Result
from tests.helpers import tuned
from tests.helpers.support import CHECKOUT

LARGE = Host(4, 4_096)
APP = Application(
    rate=100.0, workers=2, workers_a_core=1.0, postgres_s=0.02, mongodb_s=0.0, response_s=0.03,
    memory_mib=150.0, pool=5, fit=None, max_rate=math.inf, proven_rate=200.0, notes=(),
)  # fmt: skip


def row(rate: float, host: Host = LARGE, max_connections: int = 1_000, surge: int = 1) -> Row:
    return capacity.row(APP, host, rate, max_connections, surge)


def with_cores(cores: int, result: Result) -> Result:
    machine = Machine(cores=cores, memory_mib=8_192, python="3.11.7", was_busy=0.0)
    return msgspec.structs.replace(result, machine=machine)


def test_hosts_are_what_the_load_needs() -> None:
    """Four workers of 100/s are 280/s at 70 %; 1,000/s need four such hosts."""
    found = row(1_000)
    assert (found.hosts, found.workers, found.binds, found.fits) == (4, 4, "CPU", True)
    assert found.connections == (4 + 1) * 4 * (5 + 1)
    assert found.in_use == pytest.approx(20)
    assert found.memory_mib == 4 * (4 * 150 + capacity.ARBITER_MIB)
    assert row(1_120).hosts == 4
    assert row(1_121).hosts == 5


@pytest.mark.parametrize(
    ("host", "workers", "binds"),
    [
        (Host(4, 4_096), 4, "CPU"),
        (Host(4, 400), 2, "memory"),
        (Host(0.5, 4_096), 1, "CPU"),
    ],
    ids=lambda value: f"{value.cores} cores, {value.memory_mib}" if isinstance(value, Host) else "",
)
def test_the_workers_of_a_host(host: Host, workers: int, binds: str) -> None:
    """As many as its processors, or its memory, allow; at least one."""
    assert capacity.workers_of(APP, host) == (workers, binds)


def test_as_many_workers_as_were_measured_on_as_many_processors() -> None:
    """Whatever floating point makes of the quotient."""
    for cores in range(1, 65):
        for workers in range(1, 2 * cores + 1):
            app = dataclasses.replace(APP, workers_a_core=workers / cores)
            assert capacity.workers_of(app, Host(cores, 100_000))[0] == workers


def test_a_host_without_room_for_a_worker_is_refused() -> None:
    """The line has both numbers."""
    with pytest.raises(ConfigError, match=r"a worker takes 150 MiB .* a host of 200 MiB"):
        row(10, Host(4, 200))


def test_half_a_core_answers_half() -> None:
    """A pod with a part of a core has one worker, which is not a whole one."""
    assert capacity.rate_of(APP, Host(0.5, 4_096), 1)[0] == 50
    assert row(35, Host(0.5, 4_096)).hosts == 1
    assert row(36, Host(0.5, 4_096)).hosts == 2


def test_a_pool_is_smaller_where_the_budget_is_and_the_load_allows_it() -> None:
    """16 workers have 20 connections in use: three each are enough, and the plan gives four."""
    found = row(1_000, max_connections=6 + 5 * (4 * 4 + 4 * 3))
    assert (found.pool, found.min_pool, found.fits) == (4, 3, True)
    assert found.connections == (4 + 1) * 4 * (4 + 1)
    fewer = row(1_000, max_connections=6 + 5 * (4 * 4 + 4 * 1))
    assert (fewer.binds, fewer.fits) == ("connections", False)


@pytest.mark.parametrize("rate", [100, 1_000, 10_000])
@pytest.mark.parametrize("surge", [0, 1, 3])
def test_the_max_connections_that_are_asked_for_are_the_fewest(rate: int, surge: int) -> None:
    """With them the plan of the workers gives the pool, with one fewer it does not."""
    refused = row(rate, max_connections=10, surge=surge)
    assert refused.binds == "connections"
    enough = capacity.needed_connections(refused, surge)
    deployment = Deployment(refused.workers, refused.hosts, surge)
    plan = postgres_plan(PostgresFacts(enough), deployment, pool_size=5)
    assert plan.worker >= refused.min_pool
    assert row(rate, max_connections=enough, surge=surge).fits
    assert not row(rate, max_connections=enough - 1, surge=surge).fits


def test_a_pgbouncer_has_the_connections_that_are_in_use_twice() -> None:
    """It fits where they do, however many clients it has."""
    refused = row(1_000, max_connections=60)
    assert capacity.bouncer(refused, 60) == (40, refused.connections, True)
    assert capacity.bouncer(refused, 45) == (40, refused.connections, False)


def test_a_result_is_read() -> None:
    """The verified rate by the recommended workers, the recommended pool, the time in Postgres."""
    app = capacity.application(tuned.result())
    assert app.rate == pytest.approx(384 / 2)
    assert (app.workers, app.workers_a_core, app.pool) == (2, 1.0, 4)
    assert app.postgres_s == 0.006
    assert app.response_s == pytest.approx(0.012)
    assert app.memory_mib == pytest.approx(1.25 * 90)
    assert app.max_rate == math.inf


def test_what_was_not_measured_is_computed_and_said() -> None:
    """Without a sweep of the pool it is twice what Little's law gives; the rate is the knee's."""
    steps = [replace(step, connections=0) for step in tuned.result().sweeps[0].steps]
    sweep = replace(tuned.result().sweeps[0], steps=steps)
    little = replace(tuned.result(), sweeps=[sweep], recommendations=[], verification=None)
    app = capacity.application(little)
    assert app.rate == 200.0
    assert app.pool == math.ceil(2 * 200 * 0.006)
    assert "Not measured: the pool. 2 times what Little's law gives: 3." in app.notes


@pytest.mark.parametrize(
    ("seen", "note"),
    [(8, "A worker had 4 connections at most."), (2, "A worker had 1 connection at most."),
     (0, "No connection was seen: 1 is assumed.")],
)  # fmt: skip
def test_a_pool_that_was_not_measured_is_what_was_seen(seen: int, note: str) -> None:
    """Code that connects by itself opens more than it uses; else it is said to be assumed."""
    steps = [
        replace(step, shares=None, connections=seen) for step in tuned.result().sweeps[0].steps
    ]
    sweep = replace(tuned.result().sweeps[0], steps=steps)
    blind = replace(tuned.result(), sweeps=[sweep], recommendations=[], verification=None)
    measured, pool = capacity.application(blind).notes
    assert pool == f"Not measured: the pool. {note}"
    assert measured.endswith("p99 within 200 ms.")


def test_recommended_workers_that_were_not_verified_have_the_rate_of_their_step() -> None:
    """The knee is of the workers before: one worker does not answer what two did."""
    workers = tuned.recommendation("workers", 1, "workers", WEB_CONCURRENCY="1")
    interrupted = msgspec.structs.replace(
        tuned.result(), recommendations=[workers], verification=None
    )
    app = capacity.application(interrupted)
    assert (app.rate, app.workers, app.workers_a_core) == (pytest.approx(240), 1, 0.5)


def test_a_result_without_a_knee_gives_nothing() -> None:
    """No number without its measurement."""
    objective = msgspec.structs.replace(tuned.result().objective, p99_s=0.001)
    with pytest.raises(ConfigError, match="no rate at which the objective holds"):
        capacity.application(msgspec.structs.replace(tuned.result(), objective=objective))
    with pytest.raises(ConfigError, match="no rate at which the objective holds"):
        capacity.application(msgspec.structs.replace(tuned.result(), sweeps=[]))


def test_the_law_predicts_a_larger_host() -> None:
    """Eight workers answer what the fit says, relative to the two that were measured."""
    # One of the nine cores was the load generator's: a quarter of a worker for each.
    app = capacity.application(with_cores(9, tuned.result()))
    host = Host(32, 8_192)
    assert capacity.workers_of(app, host)[0] == 8
    rate, note = capacity.rate_of(app, host, 8)
    two, eight = (usl.rate(n, tuned.SIGMA, tuned.KAPPA, tuned.GAMMA) for n in (2, 8))
    assert rate == pytest.approx(384 * eight / two, rel=0.01)
    assert note.startswith("Predicted: 8 workers answer 2.88 times what 2 do")


def test_a_law_of_workers_that_shared_cores_predicts_nothing() -> None:
    """Eight workers on two cores say nothing about eight workers on eight."""
    app = capacity.application(tuned.result())
    rate, note = capacity.rate_of(app, Host(8, 8_192), 8)
    assert rate == pytest.approx(8 * app.rate)
    assert note.startswith("Assumed: 8 workers answer 4 times")
    assert "the sweep had more workers than its 2 cores" in note


def test_the_database_binds_where_idle_workers_gain_nothing_by_connections() -> None:
    """Twice the pool gave no more, and the processors were not busy: hosts do not help."""
    app = capacity.application(tuned.result(cpu=0.6))
    assert app.max_rate == pytest.approx(420)
    below, above = (capacity.row(app, LARGE, rate, 1_000, 1) for rate in (400, 500))
    assert (below.binds, below.fits) == ("CPU", True)
    assert (above.binds, above.fits) == ("the database", False)


def test_a_pool_that_has_answered_all_that_was_offered_is_no_limit_of_the_database() -> None:
    """The rate was the load's then."""
    assert capacity.application(tuned.result(cpu=0.6, offered_to_pools=420.0)).max_rate == math.inf


def test_rounds_that_differ_say_nothing_about_the_database() -> None:
    """A pool that was measured while the machine did something else is no limit."""
    result = tuned.result(cpu=0.6)
    noisy = [
        msgspec.structs.replace(
            sweep,
            steps=[
                msgspec.structs.replace(step, rounds=[0.5 * step.good_rate, step.good_rate])
                for step in sweep.steps
            ],
        )
        for sweep in result.sweeps
    ]
    assert capacity.application(result).max_rate < math.inf
    assert capacity.application(msgspec.structs.replace(result, sweeps=noisy)).max_rate == math.inf


def test_the_time_in_postgres_is_that_with_the_recommended_pool() -> None:
    """A larger pool lets requests wait in Postgres for others, which needs no connections."""
    result = tuned.result()
    slower = [
        msgspec.structs.replace(
            sweep, steps=[tuned.step(4, 420.0, offered=520.0, postgres_s=0.002)]
        )
        if sweep.name == "pool"
        else sweep
        for sweep in result.sweeps
    ]
    app = capacity.application(msgspec.structs.replace(result, sweeps=slower))
    assert app.postgres_s == 0.002
    assert app.response_s == pytest.approx(0.012)


def test_a_proof_that_missed_is_no_rate() -> None:
    """The best of what it measured broke the objective; a result without the field has met it."""
    result = tuned.result()
    assert result.verification is not None
    missed = replace(result, verification=replace(result.verification, met=False))
    with pytest.raises(ConfigError, match="the proof missed the objective"):
        capacity.application(missed)
    with pytest.raises(ConfigError, match="the proof missed the objective"):
        capacity.application(replace(missed, recommendations=[]))
    assert results.read(CHECKOUT / "examples" / "tune.json").verification.met


def test_without_the_number_of_workers_nothing_is_computed() -> None:
    """A rate of several is not that of one."""
    unknown = replace(tuned.result(), settings={}, recommendations=[], verification=None)
    with pytest.raises(ConfigError, match="it does not say how many workers there were"):
        capacity.application(unknown)


def test_without_a_look_at_the_workers_nothing_is_computed() -> None:
    """A result of --url on another host knows neither their memory nor their processor time."""
    unseen = [
        replace(sweep, steps=[replace(step, shares=None, memory_mib=0.0) for step in sweep.steps])
        for sweep in tuned.result().sweeps
    ]
    with pytest.raises(ConfigError, match="the workers were not seen"):
        capacity.application(replace(tuned.result(), sweeps=unseen))

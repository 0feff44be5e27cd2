"""greenline.budget.plan: the arithmetic of connections, and that its sum adds up."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenline.budget.plan import (
    COMMANDS,
    HEAD_ROOM,
    MONGODB_EXCHANGE,
    MONGODB_EXTRA_A_WORKER,
    POSTGRES_EXTRA_A_WORKER,
    Deployment,
    Plan,
    PostgresFacts,
    mongodb_plan,
    postgres_plan,
)
from greenline.errors import ConfigError
from tests.unit.budget.sums import results

STOCK = PostgresFacts(max_connections=100)
ALONE = Deployment(workers=2, surge_hosts=0)

few = st.integers(0, 50)
room = st.integers(0, 600)
deployments = st.builds(Deployment, st.integers(1, 32), st.integers(1, 20), st.integers(0, 5))
sizes = st.one_of(st.none(), st.integers(1, 300))


def least(deployment: Deployment, beside: int) -> int:
    """Return what all hosts need at the least."""
    hosts = deployment.hosts + deployment.surge_hosts
    return hosts * deployment.workers * (beside + 1)


@st.composite
def servers(draw: st.DrawFn, deployment: Deployment) -> PostgresFacts:
    """Return a server that *deployment* fits on, just so or with room, whatever binds."""
    need = least(deployment, POSTGRES_EXTRA_A_WORKER)
    kept, reserved, others, of_role, in_database = (draw(few) for _ in range(5))
    return PostgresFacts(
        max_connections=need + kept + reserved + others + HEAD_ROOM + draw(room),
        superuser_reserved_connections=kept,
        reserved_connections=reserved,
        may_use_reserved=draw(st.booleans()),
        is_superuser=draw(st.booleans()),
        rolconnlimit=draw(
            st.one_of(st.just(-1), room.map(lambda n: need + of_role + COMMANDS + n))
        ),
        datconnlimit=draw(
            st.one_of(st.just(-1), room.map(lambda n: need + in_database + COMMANDS + n))
        ),
        others=others,
        others_of_role=of_role,
        others_in_database=in_database,
    )


cases = deployments.flatmap(lambda one: st.tuples(servers(one), st.just(one)))


def available(facts: PostgresFacts, pgbouncer: int | None = None) -> int:
    """Return what all hosts may hold, in other words than the code's."""
    known = 0 if facts.behind_pgbouncer else 1
    reserved = 0 if facts.may_use_reserved else facts.reserved_connections
    kept = facts.superuser_reserved_connections + reserved + HEAD_ROOM
    found = [facts.max_connections - kept - known * facts.others]
    if not facts.is_superuser:
        for limit, others in (
            (facts.rolconnlimit, facts.others_of_role),
            (facts.datconnlimit, facts.others_in_database),
        ):
            found += [limit - known * others - COMMANDS] if limit >= 0 else []
    return min([*found, *([] if pgbouncer is None else [pgbouncer])])


@pytest.mark.parametrize(
    ("deployment", "host", "reserved", "worker", "max_pool_size", "more"),
    [
        (Deployment(1, 1, 0), 94, 4, 91, 91, 46),
        (Deployment(2, 1, 0), 94, 8, 44, 87, 45),
        (Deployment(4, 1, 0), 94, 16, 20, 79, 43),
        (Deployment(2, 1, 1), 47, 8, 20, 40, 21),
        (Deployment(4, 3, 1), 23, 16, 2, 8, 7),
        (Deployment(5, 3, 1), 23, 20, 1, 4, 6),
        (Deployment(7, 3, 1), 23, 23, 1, 1, 4),
        (Deployment(11, 3, 1), 23, 23, 1, 1, 0),
    ],
    ids=["one", "two", "four", "surge", "four hosts", "scarce", "no full reload", "just fits"],
)
def test_a_stock_postgres_is_shared(
    deployment: Deployment, host: int, reserved: int, worker: int, max_pool_size: int, more: int
) -> None:
    """100 - 3 reserved - 3 head-room, by hosts; two a worker for two generations, the rest even."""
    plan = postgres_plan(STOCK, deployment)
    assert (plan.host, plan.reserved, plan.worker) == (host, reserved, worker)
    assert (plan.max_pool_size, plan.more_workers) == (max_pool_size, more)
    assert plan.binding == "max_connections"


@given(cases, sizes, st.one_of(st.none(), room))
def test_all_hosts_together_never_exceed_the_server(
    case: tuple[PostgresFacts, Deployment], size: int | None, more: int | None
) -> None:
    """Whatever the facts: hosts, with those of a deploy, hold no more than the lowest limit."""
    facts, deployment = case
    through = None if more is None else least(deployment, POSTGRES_EXTRA_A_WORKER) + more
    facts = replace(facts, behind_pgbouncer=through is not None)
    plan = postgres_plan(facts, deployment, pool_size=size, pgbouncer_pool_size=through)
    hosts = deployment.hosts + deployment.surge_hosts
    assert hosts * plan.host <= available(facts, through) < hosts * (plan.host + 1)


@given(cases, sizes)
def test_a_host_holds_what_its_workers_may(
    case: tuple[PostgresFacts, Deployment], size: int | None
) -> None:
    """Even shares fit, one worker at its most beside others at their least fits, and a reload."""
    facts, deployment = case
    plan = postgres_plan(facts, deployment, pool_size=size)
    workers, each = deployment.workers, POSTGRES_EXTRA_A_WORKER + 1
    assert 1 <= plan.worker <= plan.max_pool_size
    assert plan.max_pool_size <= (size or plan.max_pool_size)
    second = plan.reserved - workers * each
    assert 0 <= second <= workers * each
    assert workers * (plan.worker + POSTGRES_EXTRA_A_WORKER) + second <= plan.host
    assert plan.max_pool_size + POSTGRES_EXTRA_A_WORKER + (workers - 1) * each + second <= plan.host
    assert second == workers * each or plan.reserved == plan.host


@given(deployments, room, sizes)
def test_a_host_holds_what_its_mongodb_clients_may(
    deployment: Deployment, more: int, size: int | None
) -> None:
    """Even shares fit while each changes clients, and a second generation at its least beside."""
    server_limit = least(deployment, MONGODB_EXTRA_A_WORKER) + HEAD_ROOM + more
    plan = mongodb_plan(server_limit, deployment, pool_size=size)
    workers, each = deployment.workers, MONGODB_EXTRA_A_WORKER + 1
    second = plan.reserved - workers * each
    # A pool of one is not exchanged.
    exchange = sum(MONGODB_EXCHANGE.values()) if plan.worker > 1 else 0
    assert workers * (plan.worker + MONGODB_EXTRA_A_WORKER + exchange) + second <= plan.host
    assert second == workers * each or plan.reserved == plan.host
    hosts = deployment.hosts + deployment.surge_hosts
    assert hosts * plan.host <= server_limit - HEAD_ROOM < hosts * (plan.host + 1)
    assert plan.max_pool_size == plan.worker <= (size or 100)


@given(cases, sizes, room)
def test_the_sum_that_is_shown_adds_up(
    case: tuple[PostgresFacts, Deployment], size: int | None, more: int
) -> None:
    """A person who computes the lines by hand gets each result, and the plan's figures."""
    facts, deployment = case
    through = least(deployment, POSTGRES_EXTRA_A_WORKER) + more
    plan = postgres_plan(facts, deployment, pool_size=size, pgbouncer_pool_size=through)
    found = results(plan.lines)
    assert found[-3:] == [plan.worker, plan.max_pool_size, plan.more_workers]
    assert plan.host in found
    server_limit = least(deployment, MONGODB_EXTRA_A_WORKER) + HEAD_ROOM + more
    plan = mongodb_plan(server_limit, deployment, pool_size=size)
    assert results(plan.lines)[-2:] == [plan.worker, plan.more_workers]


def figures(plan: Plan) -> tuple[int, ...]:
    return plan.host, plan.worker, plan.max_pool_size, plan.more_workers


# What gives less when it grows, and what gives more.
GROWING = (
    "others", "others_of_role", "others_in_database", "superuser_reserved_connections",
    "reserved_connections",
)  # fmt: skip
SHRINKING = ("max_connections", "rolconnlimit", "datconnlimit")
DEPLOYMENT = tuple(field.name for field in fields(Deployment))


def assert_no_more(less: Callable[[], Plan], before: Plan) -> None:
    """No figure of *less* is above *before*'s; when it does not fit any more there is none."""
    try:
        after = less()
    except ConfigError:
        return
    assert all(new <= old for new, old in zip(figures(after), figures(before), strict=True))


@given(cases, sizes, st.sampled_from(GROWING + SHRINKING + DEPLOYMENT), st.integers(1, 20))
def test_less_of_anything_never_gives_more(
    case: tuple[PostgresFacts, Deployment], size: int | None, name: str, step: int
) -> None:
    """More others, hosts or workers, lower limits and smaller pools: no figure grows."""
    facts, deployment = case
    before = postgres_plan(facts, deployment, pool_size=size)
    smaller = max(1, (size or 1_000) - step)
    assert_no_more(lambda: postgres_plan(facts, deployment, pool_size=smaller), before)
    if name in DEPLOYMENT:
        deployment = replace(deployment, **{name: getattr(deployment, name) + step})
    elif getattr(facts, name) >= 0:  # -1 is no limit
        value = getattr(facts, name) + (step if name in GROWING else -step)
        facts = replace(facts, **{name: max(value, 0)})
    assert_no_more(lambda: postgres_plan(facts, deployment, pool_size=size), before)


@given(deployments, room, st.sampled_from(("server_limit", *DEPLOYMENT)), st.integers(1, 20))
def test_less_of_mongodb_never_gives_more(
    deployment: Deployment, more: int, name: str, step: int
) -> None:
    """Fewer connections, more workers or more hosts: no figure grows."""
    server_limit = least(deployment, MONGODB_EXTRA_A_WORKER) + HEAD_ROOM + more
    before = mongodb_plan(server_limit, deployment)
    if name == "server_limit":
        server_limit -= step
    else:
        deployment = replace(deployment, **{name: getattr(deployment, name) + step})
    assert_no_more(lambda: mongodb_plan(server_limit, deployment), before)


@pytest.mark.parametrize(
    ("change", "host", "binding"),
    [
        ({}, 94, "max_connections"),
        ({"others": 10}, 84, "max_connections"),
        ({"reserved_connections": 5}, 89, "max_connections"),
        ({"reserved_connections": 5, "may_use_reserved": True}, 94, "max_connections"),
        ({"is_superuser": True}, 94, "max_connections"),
        ({"rolconnlimit": 40}, 39, "role's limit"),
        ({"rolconnlimit": 40, "others_of_role": 4, "others": 4}, 35, "role's limit"),
        ({"rolconnlimit": 40, "is_superuser": True}, 94, "max_connections"),
        ({"rolconnlimit": 95}, 94, "max_connections"),
        ({"datconnlimit": 30, "others_in_database": 3}, 26, "database's limit"),
        ({"datconnlimit": 30, "is_superuser": True}, 94, "max_connections"),
        ({"datconnlimit": 30, "rolconnlimit": 29}, 28, "role's limit"),
    ],
    ids=[
        "stock", "others", "reserved", "may use reserved", "superuser", "role", "others of role",
        "superuser's role", "role above", "database", "superuser's database", "both",
    ],
)  # fmt: skip
def test_the_lowest_limit_binds(change: dict[str, Any], host: int, binding: str) -> None:
    """
    Each limit has its own others, and room for a command where it is our role's or database's; a
    superuser is exempt from those two.
    """
    plan = postgres_plan(replace(STOCK, **change), ALONE)
    assert (plan.host, plan.binding) == (host, binding)


def test_a_pgbouncers_limit_must_be_set() -> None:
    """It cannot be read through it: the error names the variable, and why."""
    facts = replace(STOCK, behind_pgbouncer=True, others=40)
    with pytest.raises(ConfigError, match=r"^PGBOUNCER_POOL_SIZE: not set.*cannot be read"):
        postgres_plan(facts, ALONE)
    plan = postgres_plan(facts, ALONE, pgbouncer_pool_size=20)
    assert (plan.host, plan.binding) == (20, "PGBOUNCER_POOL_SIZE")
    plan = postgres_plan(facts, ALONE, pgbouncer_pool_size=200)
    assert (plan.host, plan.binding) == (94, "max_connections")


def test_what_does_not_fit_is_an_error_with_the_sum() -> None:
    """48 workers need 96 of 94; the error shows how many there are, and why."""
    assert postgres_plan(STOCK, Deployment(47, surge_hosts=0)).worker == 1
    with pytest.raises(ConfigError) as caught:
        postgres_plan(STOCK, Deployment(48, surge_hosts=0))
    assert str(caught.value).startswith(
        "48 workers a host need 96 connections (control 1 + pool 1 each), there are 94: "
        "max_connections 100 - 3 superuser_reserved_connections - 0 others - 3 head-room = 94, "
        "by 1 hosts = 94; lower WEB_CONCURRENCY"
    )


def test_a_reload_that_does_not_fit_is_said_and_no_error() -> None:
    """With room for one generation the workers start, and the plan says that a reload waits."""
    plan = postgres_plan(replace(STOCK, max_connections=17), Deployment(4, surge_hosts=0))
    assert (plan.host, plan.reserved, plan.worker) == (11, 11, 1)
    assert "a reload needs 8: new workers wait for connections of the old ones" in str(plan)
    assert "reload" not in str(postgres_plan(STOCK, ALONE))


@pytest.mark.parametrize(
    ("size", "worker", "max_pool_size", "binding"),
    [
        (10, 10, 10, "POSTGRES_POOL_SIZE"),
        (44, 44, 44, "max_connections"),
        (60, 44, 60, "max_connections"),
        (500, 44, 87, "max_connections"),
    ],
    ids=["below the share", "the share", "above", "above all"],
)
def test_a_pool_size_caps_and_raises_nothing(
    size: int, worker: int, max_pool_size: int, binding: str
) -> None:
    """POSTGRES_POOL_SIZE is what a worker's pool holds at most; the budget stays what it is."""
    plan = postgres_plan(STOCK, ALONE, pool_size=size)
    assert (plan.worker, plan.max_pool_size, plan.binding) == (worker, max_pool_size, binding)
    assert (plan.host, plan.more_workers) == (94, 45)


@pytest.mark.parametrize(
    ("server_limit", "setting", "size", "worker", "binding"),
    [
        (None, None, None, 100, "pymongo's maxPoolSize"),
        (None, None, 300, 300, "MONGODB_MAX_POOL_SIZE"),
        (None, None, 900, 484, "assumed limit"),
        (None, 103, None, 36, "MONGODB_MAX_CONNECTIONS"),
        (838_860, None, None, 100, "pymongo's maxPoolSize"),
        (838_860, None, 9_000, 2_034, "slots"),
        (103, None, None, 36, "serverStatus.connections"),
        (103, 200, 7, 7, "MONGODB_MAX_POOL_SIZE"),
        (103, 83, None, 26, "MONGODB_MAX_CONNECTIONS"),
    ],
    ids=[
        "silent",
        "pool",
        "large pool",
        "set",
        "plenty",
        "more than slots",
        "scarce",
        "small pool",
        "both",
    ],
)
def test_mongodb_follows_what_is_known(
    server_limit: int | None, setting: int | None, size: int | None, worker: int, binding: str
) -> None:
    """The server's word and ours, the lower one; without either 1,000; at most pymongo's 100."""
    plan = mongodb_plan(server_limit, ALONE, pool_size=size, max_connections=setting)
    assert (plan.worker, plan.binding) == (worker, binding)


def test_mongodb_that_does_not_fit_is_an_error_with_the_sum() -> None:
    """Two workers need twelve: their monitors and readiness count by name."""
    assert mongodb_plan(15, ALONE).worker == 1
    with pytest.raises(ConfigError, match="readiness 1 \\+ monitors 4 \\+ pool 1 each"):
        mongodb_plan(14, ALONE)


def test_the_plan_is_one_line_for_the_log() -> None:
    """A person can check the share by hand from a single line."""
    assert str(postgres_plan(STOCK, Deployment(2))) == (
        "20 connections a worker, up to 40 while others idle (max_connections 100 "
        "- 3 superuser_reserved_connections - 0 others - 3 head-room = 94, by 2 hosts = 47, "
        "less 8 reserved = 39, by 2 workers, and 1)"
    )

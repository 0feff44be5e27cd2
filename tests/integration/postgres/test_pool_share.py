"""Several pools in one worker: to each its turn, however busy the others are."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic

import gevent
import pytest
from sqlalchemy import create_engine, text

from greenline.postgres.connect import connect
from greenline.postgres.creator import creator
from greenline.postgres.pool import ConnectionPool
from greenline.slots import SlotTable
from tests.helpers.pools import Busy, Watch, limited, run
from tests.helpers.support import wait_until

SLOTS = 6
SOON_S = 30.0  # without its turn it would wait for ever

Opened = Callable[[int], SlotTable]
Pooled = Callable[[SlotTable], ConnectionPool]


@pytest.fixture
def url(watch: Watch) -> str:
    """Six connections at most: a seventh is refused by the server."""
    return f"{limited(watch, SLOTS)}&application_name={watch.name}"


@pytest.fixture
def opened(tmp_path: Path, stack: ExitStack) -> Opened:
    """Opens a worker's slot table with so many slots for pools, as long as it is the only one."""

    def opened(number: int) -> SlotTable:
        slot_table = SlotTable(tmp_path / "slots")
        stack.callback(slot_table.close)
        slot_table.resize(number + 1, 2)  # one is kept for a control connection
        return slot_table

    return opened


@pytest.fixture
def pooled(url: str, stack: ExitStack) -> Pooled:
    """Makes a pool on a worker's slot table."""

    def pooled(slot_table: SlotTable) -> ConnectionPool:
        pool = ConnectionPool(partial(connect, url, 5.0), max_size=100, slot_table=slot_table)
        stack.callback(pool.close, 2.0)
        return pool

    return pooled


def sizes(*pools: ConnectionPool) -> tuple[int, ...]:
    return tuple(pool.stats()["size"] for pool in pools)


def test_a_pool_under_constant_load_releases_to_the_other_pool(
    opened: Opened, pooled: Pooled
) -> None:
    """It never has an idle connection, and many wait for those it has."""
    slot_table = opened(SLOTS)
    busy, other = pooled(slot_table), pooled(slot_table)
    with Busy(busy, greenlets=30, hold_s=0.02):
        wait_until(lambda: sizes(busy) == (SLOTS,), "it to have all")
        for _ in range(3):
            with gevent.Timeout(SOON_S):
                assert run(other, "select 7") == 7


def test_two_busy_pools_of_a_worker_come_to_the_same(opened: Opened, pooled: Pooled) -> None:
    """Both are asked for more than there is; then neither gives any more."""
    slot_table = opened(SLOTS)
    first, second = pooled(slot_table), pooled(slot_table)
    with Busy(first, greenlets=30, hold_s=0.02):
        wait_until(lambda: sizes(first) == (SLOTS,), "it to have all")
        with Busy(second, greenlets=30, hold_s=0.02):
            wait_until(lambda: sizes(first, second) == (3, 3), "halves")
            until = monotonic() + 1
            while monotonic() < until:
                assert sizes(first, second) == (3, 3)
                gevent.sleep(0.01)


def test_pools_take_turns_where_there_is_one_slot(opened: Opened, pooled: Pooled) -> None:
    """Each of three that are always asked is answered again and again."""
    slot_table = opened(1)
    pools = [pooled(slot_table) for _ in range(3)]
    with ExitStack() as load:
        for pool in pools:
            load.enter_context(Busy(pool, greenlets=5, hold_s=0.01))
        for pool in pools * 2:
            with gevent.Timeout(SOON_S):
                assert run(pool, "select 7") == 7


def test_another_librarys_pool_is_given_its_turn(
    opened: Opened, pooled: Pooled, url: str, stack: ExitStack
) -> None:
    """SQLAlchemy's engine beside a pool of ours under constant load."""
    slot_table = opened(SLOTS)
    busy = pooled(slot_table)
    engine = create_engine(
        "postgresql+psycopg2://",
        creator=creator(partial(connect, url, 5.0), slot_table, timeout_s=5),
    )
    stack.callback(engine.dispose)
    with Busy(busy, greenlets=30, hold_s=0.02):
        wait_until(lambda: sizes(busy) == (SLOTS,), "it to have all")
        with gevent.Timeout(SOON_S), engine.connect() as conn:
            assert conn.execute(text("select 7")).scalar() == 7


def test_another_process_is_served_beside_them(opened: Opened, pooled: Pooled) -> None:
    """Two busy pools of one worker leave another worker its part of the host's slots."""
    slot_table = opened(SLOTS - 1)
    first, second, elsewhere = pooled(slot_table), pooled(slot_table), pooled(opened(SLOTS - 1))
    with Busy(first, greenlets=20, hold_s=0.02), Busy(second, greenlets=20, hold_s=0.02):
        wait_until(lambda: sum(sizes(first, second)) >= SLOTS - 1, "them to have all")
        with Busy(elsewhere, greenlets=20, hold_s=0.02):
            wait_until(
                lambda: sizes(elsewhere) == (3,) and sorted(sizes(first, second)) == [1, 2],
                "an even share for each worker",
            )

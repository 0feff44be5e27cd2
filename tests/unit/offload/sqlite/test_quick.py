"""greenline.offload.sqlite.quick: what is slow runs in the thread."""

import sqlite3

import gevent

from greenline.offload.sqlite.quick import MIN_QUICK_RUNS

FOREVER = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
SLOW = f"select * from ({FOREVER.replace('from n)', 'from n where i < ?)')})"


def test_a_query_that_becomes_slow_does_not_block_the_hub(conn: sqlite3.Connection) -> None:
    """It was quick before and ran in the greenlet: beyond the limit the thread begins it again."""
    for _ in range(10):
        assert conn.execute(SLOW, (3,)).fetchone() == (3,)
    assert conn._paces[SLOW] >= MIN_QUICK_RUNS  # type: ignore[attr-defined]
    turns = 0

    def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0.001)

    counting = gevent.spawn(count)
    gevent.sleep(0)
    assert conn.execute(SLOW, (1_000_000,)).fetchone() == (1_000_000,)
    counting.kill()
    assert turns > 5
    assert conn._paces[SLOW] < 0  # type: ignore[attr-defined]

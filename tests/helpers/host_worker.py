"""
A worker of a host as the tests need forty of: a pool under load and what counts the hosts.

``python -m tests.helpers.host_worker URL TABLE WORKERS SECONDS`` begins when a line comes in, and
writes each error of a connect or a statement, and every 0.2 s how many statements it ran. A third
of them last so many seconds: they delay a shrinking.
"""

from greenline.patch import hook_psycopg2, patch_all

patch_all()
hook_psycopg2()

import logging  # noqa: E402
import random  # noqa: E402
import sys  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402

import gevent  # noqa: E402

from greenline.errors import GreenlineError  # noqa: E402
from greenline.postgres.connect import connect  # noqa: E402
from greenline.postgres.connection import Connection  # noqa: E402
from greenline.postgres.pool import ConnectionPool  # noqa: E402
from tests.helpers.member import Member  # noqa: E402

GREENLETS = 8 + 8
SHORT_S = 0.1


def tell(what: object) -> None:
    print(what, flush=True)


def connect_and_tell(url: str, **more: object) -> Connection:
    try:
        return connect(url, 5.0, 10.0, **more)  # type: ignore[arg-type]
    except BaseException as error:
        tell(f"connect: {error}")
        raise


def main(url: str, slot_table: str, workers: str, long_s: str) -> None:
    logging.basicConfig(
        format="log %(asctime)s.%(msecs)03d %(message)s", stream=sys.stdout, level="INFO"
    )
    tell("ready")
    sys.stdin.readline()
    member = Member(Path(slot_table), partial(connect_and_tell, url), int(workers))
    served = [0]

    def ask(pool: ConnectionPool) -> None:
        while True:
            try:
                with pool.connection(autocommit=True) as conn, conn.cursor() as cursor:
                    cursor.execute(
                        "select pg_sleep(%s)", (random.choice((SHORT_S, SHORT_S, float(long_s))),)
                    )
                served[0] += 1
            except GreenlineError as error:
                tell(f"statement: {error}")
                gevent.sleep(0.1)

    member.start()
    for _ in range(GREENLETS):
        gevent.spawn(ask, member.pool)
    while True:
        gevent.sleep(0.2)
        tell(f"served {served[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""pyodbc, without a setting, with psqlODBC, both as Debian packages them."""

import os
import subprocess
import sys

import pytest

from embedded.debian import environment, unpacked
from embedded.postgres import PORT
from greenline.errors import ConfigError
from tests.helpers.support import CHECKOUT, IS_LONG

pytestmark = pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 fetches psqlODBC")

SCRIPT = """
from greenline.patch import patch_all; patch_all()
import os, time, gevent, pyodbc

def connect():
    return pyodbc.connect(os.environ["ODBC"])

def wait():
    conn = connect()
    return conn.execute("select pg_sleep(1)::text, ?", 7).fetchone()[1]

def hold(number):
    with connect() as conn:
        conn.execute("lock table t")
        time.sleep(0.01)
        conn.cursor().executemany("insert into t values (?)", iter([(number,), (number,)]))

conn = connect()
conn.execute("create table t (a int)")
conn.commit()
started = time.monotonic()
waits = gevent.joinall([gevent.spawn(wait) for _ in range(20)], raise_error=True)
print({each.value for each in waits}, time.monotonic() - started < 10)
gevent.joinall([gevent.spawn(hold, number) for number in range(30)], raise_error=True)
rows = conn.execute("select a from t order by a")
print(rows.fetchone(), rows.fetchmany(2), [a for a, in rows] == sorted([*range(30)] * 2)[3:])
cursor = conn.cursor()
waiting = gevent.spawn(cursor.execute, "select pg_sleep(20)")
gevent.sleep(0.3)
cursor.cancel()
try:
    waiting.get()
except pyodbc.Error as error:
    print(error.args[0], [each.column_name for each in cursor.columns(table="t")])
"""


def test_queries_and_locks_are_waited_for_side_by_side(empty_database: str) -> None:
    """Twenty queries of a second take about one; thirty hold a lock in turn across a sleep."""
    try:
        packages = [unpacked(name) for name in ("python3-pyodbc", "odbc-postgresql")]
    except ConfigError as error:
        pytest.skip(str(error))
    (driver,) = packages[1].rglob("psqlodbcw.so")
    name, server = empty_database.partition("@/")[2].split("?host=")
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(environment(each)["LD_LIBRARY_PATH"] for each in packages),
        "PYTHONPATH": f"{CHECKOUT}:{packages[0] / 'usr/lib/python3/dist-packages'}",
        "ODBC": f"Driver={driver};Server={server.partition('&')[0]};Port={PORT};Database={name};"
        "Uid=greenline;SSLmode=disable",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=120
    )
    if "No module named" in done.stderr:
        pytest.skip("Debian's pyodbc is for another Python")
    assert done.stdout.splitlines() == [
        "{'7'} True", "(0, ) [(0, ), (1, )] True", "57014 ['a']"
    ], done.stderr  # fmt: skip

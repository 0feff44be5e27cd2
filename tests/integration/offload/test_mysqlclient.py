"""mysqlclient, without a setting, on a MariaDB that Debian packages."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded.debian import environment, unpacked
from greenline.errors import ConfigError
from tests.helpers.support import CHECKOUT, IS_LONG, free_port, wait_until

pytestmark = pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 fetches a MariaDB")

SCRIPT = """
from greenline.patch import patch_all; patch_all()
import os, time, gevent, MySQLdb, MySQLdb.cursors

def connect():
    return MySQLdb.connect(host="127.0.0.1", port=int(os.environ["MARIADB"]), user="root")

def wait():
    conn = connect(); cursor = conn.cursor()
    cursor.execute("select sleep(1), %s", (7,))
    return cursor.fetchall()

def hold(number):
    conn = connect(); cursor = conn.cursor()
    cursor.execute("select get_lock('one', 30)")
    time.sleep(0.01)
    cursor.execute("insert into d.t values (%s)", (number,))
    conn.commit()
    cursor.execute("select release_lock('one')")
    conn.close()

conn = connect(); cursor = conn.cursor()
cursor.execute("create database d"); cursor.execute("create table d.t (a int) engine=innodb")
started = time.monotonic()
waits = gevent.joinall([gevent.spawn(wait) for _ in range(20)], raise_error=True)
print({each.value for each in waits} == {((0, 7),)}, time.monotonic() - started < 10)
gevent.joinall([gevent.spawn(hold, number) for number in range(30)], raise_error=True)
cursor = conn.cursor(MySQLdb.cursors.SSCursor)
cursor.execute("select a from d.t order by a")
print(cursor.fetchone(), cursor.fetchmany(2), len(cursor.fetchall()))
"""

# As with preload_app: the class of the connections is older than the patching.
EARLY = """
import os, time, MySQLdb
def connect():
    return MySQLdb.connect(host="127.0.0.1", port=int(os.environ["MARIADB"]), user="root")
early = connect()
from greenline.patch import patch_all; patch_all()
import gevent

def wait(conn):
    cursor = conn.cursor()
    cursor.execute("select sleep(1), %s", (7,))
    conn.commit()
    return cursor.fetchall()

started = time.monotonic()
waits = [gevent.spawn(lambda: wait(connect())) for _ in range(10)] + [gevent.spawn(wait, early)]
gevent.joinall(waits, raise_error=True)
print({each.value for each in waits} == {((0, 7),)}, time.monotonic() - started < 5)
"""


@pytest.fixture
def mariadb(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Run an empty MariaDB; give the environment in which mysqlclient finds it."""
    try:
        server, client = unpacked("mariadb-server-core"), unpacked("python3-mysqldb")
    except ConfigError as error:
        pytest.skip(str(error))
    port = free_port()
    (tmp_path / "data").mkdir()
    options = [
        f"--datadir={tmp_path / 'data'}", f"--socket={tmp_path / 'socket'}", f"--port={port}",
        f"--lc-messages-dir={server / 'usr/share/mysql'}", f"--pid-file={tmp_path / 'pid'}",
        "--bind-address=127.0.0.1", "--skip-grant-tables", "--innodb-buffer-pool-size=16M",
    ]  # fmt: skip
    if os.geteuid() == 0:
        options.append("--user=root")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [server / "usr/sbin/mariadbd", "--no-defaults", *options],
            env=environment(server), stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: "ready for connections" in (tmp_path / "log").read_text(), "MariaDB")
        modules = client / "usr/lib/python3/dist-packages"
        yield {
            **environment(client),
            "PYTHONPATH": f"{CHECKOUT}:{modules}",
            "MARIADB": str(port),
        }
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.mark.parametrize(
    ("script", "said"),
    [(SCRIPT, ["True True", "(0,) ((1,), (2,)) 27"]), (EARLY, ["True True"])],
    ids=["the application connects", "connected before"],
)
def test_queries_and_locks_are_waited_for_side_by_side(
    mariadb: dict[str, str], script: str, said: list[str]
) -> None:
    """Twenty queries of a second take about one; thirty hold a lock in turn across a sleep."""
    done = subprocess.run(
        [sys.executable, "-c", script], env=mariadb, capture_output=True, text=True, timeout=60
    )
    if "No module named" in done.stderr:
        pytest.skip("Debian's mysqlclient is for another Python")
    assert done.stdout.splitlines() == said, done.stderr

"""SQLAlchemy's QueuePool, whose checkouts nest."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any

import gevent
import gevent.threadpool
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import NullPool, QueuePool, StaticPool

from embedded.postgres import Postgres
from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.hub.handlers import Handler
from greenline.hub.turns import Turns
from greenline.legacy import sqlalchemy as legacy
from tests.helpers.support import CHECKOUT, wait_until

LIMIT_S = 30.0


@pytest.fixture
def engines(postgres: Postgres) -> Iterator[Any]:
    """Makes engines as an application does, and disposes of them."""
    made: list[Engine] = []

    def make(**arguments: Any) -> Engine:
        url = postgres.url.replace("postgresql://", "postgresql+psycopg2://")
        made.append(create_engine(url, **arguments))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


def nested(engine: Engine, pause_s: float = 0.01) -> int:
    """Ask over one connection, and over another one before the first is given back."""
    with engine.connect() as outer:
        outer.execute(text(f"select pg_sleep({pause_s})"))
        with engine.connect() as inner:
            return int(inner.execute(text("select 42")).scalar_one())


def joined(running: "list[gevent.Greenlet[..., Any]]") -> list[Any]:
    """Return what the greenlets return."""
    with gevent.Timeout(LIMIT_S):
        gevent.joinall(running, raise_error=True)
    return [one.value for one in running]


class Request(Handler):
    """A greenlet that counts as a request's."""

    def __init__(self, work: Callable[..., Any], *arguments: Any) -> None:
        super().__init__([], Turns())
        gevent.Greenlet.__init__(self, work, *arguments)

    _run = gevent.Greenlet._run


def spawn(work: Callable[..., Any], *arguments: Any) -> Request:
    """Do *work* as a request does."""
    request = Request(work, *arguments)
    request.start()
    return request


def in_a_request(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test as a request runs."""

    @wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        spawn(partial(test, *arguments, **fixtures)).get()

    return run


def waiting_for(engine: Engine) -> int:
    """Return how many greenlets wait for their first connection."""
    return len(engine.pool._greenline_admission._line)  # type: ignore[attr-defined]


def idle(engine: Engine) -> bool:
    """Return whether all that was counted was given back."""
    admission = engine.pool._greenline_admission  # type: ignore[attr-defined]
    return (admission._taken, admission._held, len(admission._line)) == (0, {}, 0)


@pytest.mark.parametrize(
    "sizes", [{}, {"pool_size": 2, "max_overflow": 0}, {"pool_size": 1, "max_overflow": 2}],
    ids=["default", "two", "one and overflow"],
)  # fmt: skip
def test_fifty_greenlets_take_two_connections_each(engines: Any, sizes: dict[str, int]) -> None:
    """All are answered, although the pool has far fewer, and none waits for a timeout."""
    engine = engines(pool_timeout=LIMIT_S, **sizes)
    assert joined([spawn(nested, engine) for _ in range(50)]) == [42] * 50
    assert idle(engine)


@pytest.mark.parametrize("is_pooled", [False, True])
def test_the_order_of_idle_connections(
    engines: Any, is_pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where psycopg2 is pooled, what came back last is used next, as it is not taken over."""
    monkeypatch.setenv("GREENLINE_POOL", str(int(is_pooled)))
    engine = engines()

    def backend(conn: Any) -> int:
        return int(conn.execute(text("select pg_backend_pid()")).scalar_one())

    with engine.connect() as first, engine.connect() as second:
        pids = backend(first), backend(second)
        second.close()
        first.close()
    with engine.connect() as conn:
        assert backend(conn) == pids[0 if is_pooled else 1]
    other = create_engine("sqlite://", poolclass=QueuePool)
    other.connect().close()
    assert not other.pool._pool.use_lifo  # type: ignore[attr-defined]


def test_a_connection_of_a_greenlet_without_a_request_is_waited_for(engines: Any) -> None:
    """Two requests hold the others, and each needs one more: none is refused for a short job."""
    engine = engines(pool_size=3, max_overflow=0)
    joined([spawn(nested, engine)])
    admission = engine.pool._greenline_admission
    while admission._is_new():
        joined([spawn(lambda: engine.connect().close())])

    def work() -> None:
        with engine.connect() as conn:
            conn.execute(text("select pg_sleep(1)"))

    requests = [spawn(nested, engine, 0.3) for _ in range(2)]
    job = gevent.spawn(work)
    wait_until(lambda: (admission._taken, admission.others) == (2, 1), "all to be held")
    assert joined(requests) == [42, 42]
    job.get(timeout=LIMIT_S)


def test_they_are_served_in_turn(engines: Any) -> None:
    """In the order in which they asked for their first connection."""
    engine, order = engines(pool_size=2, max_overflow=0), []

    def work(number: int) -> None:
        nested(engine)
        order.append(number)

    joined([spawn(work, number) for number in range(6)])
    assert order == list(range(6))


@in_a_request
def test_the_last_connection_is_given_where_checkouts_do_not_nest(engines: Any) -> None:
    """After a probe, ten checkouts a connection, the pool is as large as it was made."""
    engine = engines(pool_size=2, max_overflow=0)
    for _ in range(17):
        engine.connect().close()
    with engine.connect():
        other = spawn(lambda: engine.connect().close())
        wait_until(lambda: waiting_for(engine) == 1, "it to wait")
    other.get(timeout=LIMIT_S)
    with engine.connect():
        other = spawn(lambda: engine.connect().close())
        other.get(timeout=LIMIT_S)
    nested(engine)
    with engine.connect():
        other = spawn(lambda: engine.connect().close())
        wait_until(lambda: waiting_for(engine) == 1, "it to wait again")
    other.get(timeout=LIMIT_S)


def test_what_waits_for_a_lock_of_a_first_nested_checkout_ends(engines: Any) -> None:
    """All connections are in use: it gets one more, which is closed afterwards."""
    engine = engines(pool_timeout=LIMIT_S)
    joined([spawn(lambda: engine.connect().close()) for _ in range(160)])
    with engine.begin() as conn:
        conn.execute(text("create table locked as select 0 as number"))
    connects: list[Any] = []
    event.listen(engine, "connect", lambda *_: connects.append(_))

    def add(conn: Any) -> None:
        conn.execute(text("update locked set number = number + 1"))

    def work() -> None:
        with engine.begin() as conn:
            add(conn)
        overflows.append(engine.pool.overflow())

    def nest() -> None:
        with engine.begin() as conn:
            add(conn)
            others.extend(spawn(work) for _ in range(40))
            wait_until(lambda: engine.pool.checkedout() == 15, "the others to wait for it")
            with engine.connect() as inner:
                assert inner.execute(text("select number from locked")).scalar_one() == 0

    others: list[Any] = []
    overflows: list[int] = []
    try:
        joined([spawn(nest)])
        joined(others)
        with engine.connect() as conn:
            assert conn.execute(text("select number from locked")).scalar_one() == 41
        assert len(connects) <= 16
        assert max(overflows[10:]) == 10
        assert (engine.pool.checkedin(), engine.pool.overflow()) == (5, 0)
    finally:
        with engine.begin() as conn:
            conn.execute(text("drop table locked"))
    assert idle(engine)


@in_a_request
def test_the_timeout_is_the_pools(engines: Any) -> None:
    """And so is the error."""
    engine = engines(pool_size=1, max_overflow=1, pool_timeout=0.1)
    with engine.connect():
        waiting = spawn(engine.connect)
        with pytest.raises(PoolTimeoutError, match="QueuePool limit of size 1 overflow 0 reached"):
            waiting.get(timeout=LIMIT_S)
    assert idle(engine)


@in_a_request
def test_interrupted_greenlets_leave_the_line(engines: Any) -> None:
    """Killed, late, or killed in the moment in which they are let in."""
    engine = engines(pool_size=1, max_overflow=1)

    def be_late() -> None:
        with deadline.limit(0.05), pytest.raises(DeadlineExceeded):
            engine.connect()

    with engine.connect():
        killed, late, served, last = [
            spawn(work) for work in (engine.connect, be_late, engine.connect, engine.connect)
        ]
        wait_until(lambda: waiting_for(engine) == 4, "all to wait")
        killed.kill()
        late.get(timeout=LIMIT_S)
        served.kill(block=False)
    with last.get(timeout=LIMIT_S):
        pass
    assert idle(engine)


@in_a_request
def test_whichever_greenlet_gives_it_back(engines: Any) -> None:
    """The connection was counted for the one that took it."""
    engine = engines(pool_size=1, max_overflow=1)
    taken = spawn(engine.connect).get(timeout=LIMIT_S)
    taken.close()
    assert idle(engine)


@in_a_request
def test_what_is_dropped_detached_or_broken_is_given_back(engines: Any) -> None:
    """SQLAlchemy finds out, and so do we."""
    engine = engines(pool_size=1, max_overflow=1)
    spawn(lambda: engine.connect() and None).get(timeout=LIMIT_S)
    wait_until(lambda: idle(engine), "the dropped one to be found")
    detached = engine.connect()
    detached.detach()
    assert idle(engine)
    detached.close()
    with engine.connect() as broken:
        broken.invalidate()
    assert idle(engine)


@in_a_request
def test_a_connect_that_fails_is_not_counted(engines: Any) -> None:
    """The pool reserves a place before it connects."""
    engine = engines(pool_size=1, max_overflow=1, connect_args={"dbname": "nowhere"})
    for _ in range(4):
        with pytest.raises(OperationalError):
            engine.connect()
    assert idle(engine)


@in_a_request
def test_a_pool_that_is_disposed_of_meanwhile(engines: Any) -> None:
    """What was taken before goes back to the old pool."""
    engine = engines(pool_size=1, max_overflow=1)
    with engine.connect():
        engine.dispose()
        with engine.connect() as conn:
            assert conn.execute(text("select 1")).scalar_one() == 1
    assert idle(engine)


@pytest.mark.parametrize(
    "arguments",
    [{"max_overflow": -1}, {"pool_size": 0}, {"pool_size": 1, "max_overflow": 0},
     {"poolclass": NullPool}, {"poolclass": StaticPool}],
    ids=["no limit", "size 0", "one", "NullPool", "StaticPool"],
)  # fmt: skip
def test_other_pools_are_left_alone(engines: Any, arguments: dict[str, Any]) -> None:
    """They have no last connection, or nothing that could nest."""
    engine = engines(**arguments)
    with ExitStack() as stack:
        for _ in range(1 if arguments.get("max_overflow") == 0 else 3):
            stack.enter_context(engine.connect())
    admission = getattr(engine.pool, "_greenline_admission", None)
    assert admission is None or not admission.is_limited


def test_native_threads_are_left_alone(engines: Any) -> None:
    """They wait in SQLAlchemy's own queue."""
    engine = engines(pool_size=2, max_overflow=0)
    pool = gevent.threadpool.ThreadPool(3)
    with gevent.Timeout(LIMIT_S):
        pool.apply(lambda: engine.connect().close())
    assert idle(engine)
    pool.kill()


def test_a_connection_that_the_application_holds_for_ever(engines: Any) -> None:
    """A request gets the other one, and many that nest do not wait for each other."""
    engine = engines(pool_size=2, max_overflow=2, pool_timeout=LIMIT_S)
    with engine.connect(), engine.connect() as second:
        running = [spawn(nested, engine) for _ in range(20)]
        assert joined(running) == [42] * 20
        with engine.connect():
            spawn(lambda: engine.connect().close()).get(timeout=LIMIT_S)
            running = [spawn(lambda: engine.connect().close()) for _ in range(3)]
            second.close()
            joined(running)
    assert idle(engine)
    assert engine.pool._greenline_admission.others == 0


def test_events_of_the_pool_may_ask_it(engines: Any) -> None:
    """The wrapper takes what the pool itself does for no checkout of its own."""
    engine = engines(pool_size=2, max_overflow=0)
    seen = []

    @event.listens_for(engine, "checkout")
    def ask(dbapi: Any, *_: Any) -> None:
        seen.append(dbapi)

    assert joined([spawn(nested, engine) for _ in range(9)]) == [42] * 9
    assert len(seen) == 18


@pytest.mark.parametrize("first", ["install", "import"])
def test_it_does_not_matter_which_is_imported_first(first: str) -> None:
    """An application imports SQLAlchemy when it likes; until then nothing of it is imported."""
    lines = ["import sys, greenline.legacy.sqlalchemy as legacy", "legacy.install()"]
    if first == "install":
        lines += ["assert 'sqlalchemy' not in sys.modules"]
    else:
        lines.insert(1, "import sqlalchemy.pool")
    lines += [
        "legacy.install()",
        "from sqlalchemy.pool import QueuePool",
        "assert QueuePool._do_get.__wrapped__.__module__ == 'sqlalchemy.pool.impl'",
        "assert not hasattr(QueuePool._do_get.__wrapped__, '__wrapped__')",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_private_names_are_there() -> None:
    """Those of SQLAlchemy that the wrapper needs."""
    queue_pool = importlib.import_module(legacy.POOL_MODULE).QueuePool
    assert hasattr(queue_pool._do_get, "__wrapped__")
    for name in ("_create_connection", "_dec_overflow", "_max_overflow", "_overflow",
                 "_overflow_lock", "_timeout", "_pool"):  # fmt: skip
        assert hasattr(queue_pool(lambda: None), name)


@pytest.mark.parametrize(
    "name",
    ["_do_get", "_do_return_conn", "_create_connection", "_dec_overflow", "_overflow_lock",
     "_max_overflow", "_timeout", "self._pool", "__dict__"],
)  # fmt: skip
def test_an_unknown_pool_stays_as_it_is(name: str) -> None:
    """SQLAlchemy works without the wrapper where it has renamed one; one warning says so."""
    code = f"""
from importlib.machinery import SourceFileLoader

read = SourceFileLoader.get_data

def renamed(self, path):
    data = read(self, path)
    if "/sqlalchemy/pool/" not in path:
        return data
    if path.endswith(".pyc"):  # so that the source is read
        raise OSError
    return data.replace(b'{name}', b'{name}_new' if b'{name}' != b'__dict__' else b'_held')

SourceFileLoader.get_data = renamed
import greenline.legacy.sqlalchemy as legacy
legacy.install()
from sqlalchemy import create_engine, text
from sqlalchemy.pool import QueuePool
engine = create_engine("sqlite://", poolclass=QueuePool)
for _ in range(2):
    with engine.connect() as conn:
        print(conn.execute(text("select 42")).scalar_one())
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "42\n42\n"), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("SQLAlchemy's QueuePool is not a known one (")
    assert name.removeprefix("self.") in done.stderr

"""
Compute how many connections a host and its workers may hold: arithmetic without I/O.

The lowest limit of the server is divided by the number of hosts. Of a host's part, each worker has
a few connections reserved, also during a reload with two generations of workers; the rest is
shared by the workers' pools.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from greenline.budget.sum import Line, Sum, as_text
from greenline.errors import ConfigError
from greenline.slots.file import SLOTS

# Left free on a server, for connections without a slot: psql, mongosh, and commands
# (``greenline budget``, a migration).
HEAD_ROOM = 3
# Left free of a role's or a database's limit: commands use Greenline's role, people their own.
COMMANDS = 1
# The number of new hosts, each with one connection, that may start within the second in which the
# other hosts shrink; at most a quarter of a server's limit. For counted hosts only.
NEWCOMERS = 10
# One for readiness, cancelling, reaping slots and registering the host.
POSTGRES_OVERHEAD = {"control": 1}
# At each server: the readiness check's connection, and two monitors of each of the two clients:
# mongod 4.4 and newer streams its changes over one, and its round-trip time is measured over the
# other. A polled server (Amazon DocumentDB) has one monitor for each client, 3 connections in all.
# The limit is each server's own, so the members of a replica set do not add up.
MONGODB_OVERHEAD = {"readiness": 1, "monitors": 4}
POSTGRES_EXTRA_A_WORKER = sum(POSTGRES_OVERHEAD.values())
MONGODB_EXTRA_A_WORKER = sum(MONGODB_OVERHEAD.values())
# A worker that began with a small pool has two clients while it exchanges them.
MONGODB_EXCHANGE = {"old pool": 1, "its monitors": 2}
# Assumed if neither the server nor MONGODB_MAX_CONNECTIONS gives a limit: that of the smallest
# hosted servers (Amazon DocumentDB with 4 GiB), far below mongod's default.
MONGODB_DEFAULT_MAX_CONNECTIONS = 1_000
# pymongo's own default for a pool: more operations would only queue in the server.
MONGODB_DEFAULT_POOL_SIZE = 100


@dataclass(frozen=True)
class PostgresFacts:
    """
    Hold the limits of a Postgres for Greenline's role, and the connections that others hold.

    The names are those of pg_settings, pg_roles and pg_database; -1 is no limit. "Others" are
    client backends that are not Greenline's.

    :param max_connections: of the server, int.
    :param superuser_reserved_connections: int, default 3.
    :param reserved_connections: for members of pg_use_reserved_connections, int, default 0.
    :param may_use_reserved: the role is such a member, bool, default False.
    :param is_superuser: the role ignores its own and the database's limit, bool, default False.
    :param rolconnlimit: of the role, int, default -1.
    :param datconnlimit: of the database, int, default -1.
    :param others: all of them, int, default 0.
    :param others_of_role: those with Greenline's role, int, default 0.
    :param others_in_database: those in Greenline's database, int, default 0.
    :param behind_pgbouncer: the server is reached through a pgbouncer, bool, default False.
    """

    max_connections: int
    superuser_reserved_connections: int = 3
    reserved_connections: int = 0
    may_use_reserved: bool = False
    is_superuser: bool = False
    rolconnlimit: int = -1
    datconnlimit: int = -1
    others: int = 0
    others_of_role: int = 0
    others_in_database: int = 0
    behind_pgbouncer: bool = False


@dataclass(frozen=True)
class Deployment:
    """
    Hold the numbers of processes that share a server.

    :param workers: workers of each host, int.
    :param hosts: hosts, int, default 1.
    :param surge_hosts: additional hosts during a rolling deploy, int, default 1.
    """

    workers: int
    hosts: int = 1
    surge_hosts: int = 1


@dataclass(frozen=True)
class Plan:
    """
    Hold the numbers of connections that a host and its workers may open at one server.

    :param all_hosts: connections of all hosts, int.
    :param host: connections of one host, int.
    :param reserved: those of *host* that are kept for single workers, int.
    :param worker: an even share for a worker's pool, int.
    :param max_pool_size: the largest size of a worker's pool while the others are idle, int.
    :param more_workers: the number of workers that would still fit, int.
    :param binding: the name of the limit that decides, str.
    :param reason: the sum as one line of text, str.
    :param lines: the sum line by line.
    """

    all_hosts: int
    host: int
    reserved: int
    worker: int
    max_pool_size: int
    more_workers: int
    binding: str
    reason: str
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        suffix = f", up to {self.max_pool_size} while others idle" * (
            self.max_pool_size > self.worker
        )
        return f"{self.worker} connections a worker{suffix} ({self.reason})"


def table(name: str, plan: Plan) -> str:
    """
    Return *plan* as a sum to check by hand, with a line for each number.

    :param name: of the server or the pool, str.
    """
    suffix = f", up to {plan.max_pool_size} while others idle" * (plan.max_pool_size > plan.worker)
    rows = [f"{name}: {plan.host} connections a host, {plan.worker} in a worker's pool{suffix}"]
    rows += [f"{plan.more_workers} more workers would fit; {plan.binding} binds"]
    number = max(len(str(line.number)) for line in plan.lines)
    text = max(len(line.name) for line in plan.lines)
    for line in plan.lines:
        # A line without a sign starts a new sum.
        row = f"  {line.sign:>2} {line.number:>{number}}  {line.name:<{text}}  {line.meaning}"
        rows += [row.rstrip()] if line.sign else ["", row.rstrip()]
    return "\n".join(rows)


def postgres_plan(
    facts: PostgresFacts,
    deployment: Deployment,
    *,
    pool_size: int | None = None,
    pgbouncer_pool_size: int | None = None,
    is_counted: bool = False,
) -> Plan:
    """
    Return the plan for a Postgres.

    :param facts: the server's limits.
    :param deployment: the hosts and workers.
    :param pool_size: an upper limit of a worker's pool, int; default None, no such limit.
    :param pgbouncer_pool_size: connections that the pgbouncer in front of the server gives all
        hosts together, int, default None.
    :param is_counted: the hosts are those registered now, bool, default False. A part is kept for
        new hosts then, and surge hosts are ignored.
    :raises ConfigError: the reserved connections of one generation of workers do not fit (the text
        has the sum), or the limit of the pgbouncer is unknown.
    """
    if facts.behind_pgbouncer and pgbouncer_pool_size is None:
        raise ConfigError(
            "PGBOUNCER_POOL_SIZE: not set, and DATABASE_URL leads to a pgbouncer (the process id "
            "that the driver was given is not pg_backend_pid()): what it allows cannot be read "
            "through it; set it to the pool_size of this database, as all hosts share it"
        )
    # An idle backend of a pgbouncer has the application name of its last client, so Greenline's
    # backends cannot be distinguished from others.
    held, whose = (
        (0, "unknown behind a pgbouncer") if facts.behind_pgbouncer else (1, "held by them now")
    )
    whole = Sum().put("", facts.max_connections, "max_connections")
    admins = "for administrators"
    whole.put("-", facts.superuser_reserved_connections, "superuser_reserved_connections", admins)
    if facts.reserved_connections and not facts.may_use_reserved:
        whole.put("-", facts.reserved_connections, "reserved_connections", "not for our role")
    whole.put("-", held * facts.others, "others", whose)
    whole.put("-", HEAD_ROOM, "head-room", "people with psql, commands")
    limits = {"max_connections": whole}
    # Postgres does not apply the limits of a role and a database to superusers.
    if facts.rolconnlimit >= 0 and not facts.is_superuser:
        role = Sum().put("", facts.rolconnlimit, "role's limit", "rolconnlimit")
        limits["role's limit"] = role.put("-", held * facts.others_of_role, "others", whose)
        role.put("-", COMMANDS, "commands", "greenline budget, migrations")
    if facts.datconnlimit >= 0 and not facts.is_superuser:
        base = Sum().put("", facts.datconnlimit, "database's limit", "datconnlimit")
        base.put("-", held * facts.others_in_database, "others", whose)
        base.put("-", COMMANDS, "commands", "greenline budget, migrations")
        limits["database's limit"] = base
    if pgbouncer_pool_size is not None:
        limits["PGBOUNCER_POOL_SIZE"] = Sum().put("", pgbouncer_pool_size, "PGBOUNCER_POOL_SIZE")
    cap = ("POSTGRES_POOL_SIZE", pool_size)
    return _plan(limits, deployment, POSTGRES_OVERHEAD, cap, is_counted=is_counted)


def mongodb_plan(
    server_limit: int | None,
    deployment: Deployment,
    *,
    pool_size: int | None = None,
    max_connections: int | None = None,
) -> Plan:
    """
    Return the plan for a MongoDB, whose ``worker`` is the maxPoolSize.

    A worker cannot use another one's share: the size of pymongo's pool is fixed.

    :param server_limit: the server's limit, int; None if unknown.
    :param deployment: the hosts and workers.
    :param pool_size: an upper limit of a worker's pool, int; default None, that of pymongo.
    :param max_connections: MONGODB_MAX_CONNECTIONS, int, default None; the lower of both limits
        applies.
    :raises ConfigError: the reserved connections of one generation of workers do not fit (the text
        has the sum).
    """
    known = {"serverStatus.connections": server_limit, "MONGODB_MAX_CONNECTIONS": max_connections}
    limits = {
        name: Sum().put("", allowed, name) for name, allowed in known.items() if allowed is not None
    }
    if not limits:
        assumed = "assumed limit"
        why = "the server does not report it; set MONGODB_MAX_CONNECTIONS"
        limits[assumed] = Sum().put("", MONGODB_DEFAULT_MAX_CONNECTIONS, assumed, why)
    for limit in limits.values():
        limit.put("-", HEAD_ROOM, "head-room", "people with mongosh, commands")
    if pool_size is None:
        cap = ("pymongo's maxPoolSize", MONGODB_DEFAULT_POOL_SIZE)
    else:
        cap = ("MONGODB_MAX_POOL_SIZE", pool_size)
    return _plan(limits, deployment, MONGODB_OVERHEAD, cap, MONGODB_EXCHANGE)


def _plan(
    limits: Mapping[str, Sum],
    deployment: Deployment,
    overhead: Mapping[str, int],
    cap: tuple[str, int | None],
    exchange: Mapping[str, int] | None = None,
    *,
    is_counted: bool = False,
) -> Plan:
    """
    Return the plan under the lowest of *limits*.

    :param limits: connections that all hosts may open, by the name of each limit.
    :param deployment: the hosts and workers.
    :param overhead: connections of a worker besides its pool, by purpose.
    :param cap: the name and the value of an upper limit of a worker's pool; None is no limit.
    :param exchange: connections that a worker needs to replace its pool by a larger one, by
        purpose. Default None: the pool itself grows and shrinks.
    :param is_counted: as for :func:`postgres_plan`.
    """
    for limit in limits.values():
        limit.result("for all hosts")
    binding = min(limits, key=lambda name: limits[name].value)
    workers = deployment.workers
    per_worker = sum(overhead.values()) + 1
    by_name = _named({**overhead, "pool": 1})

    total = Sum(value=limits[binding].value)
    if len(limits) > 1:
        total.put("", total.value, "lowest", f"{binding} binds")
    own, begin = limits[binding].lines, len(total.lines)
    hosts, meaning = deployment.hosts, _count(deployment.hosts, "host")
    if is_counted:
        # Surge hosts are counted when they register, and need one connection to do so.
        aside = min(NEWCOMERS, max(total.value, 0) // 4)
        total.put("-", aside, "newcomers", "the first connections of new hosts")
        meaning += ", as counted now"
    elif deployment.surge_hosts:
        hosts += deployment.surge_hosts
        meaning += f", and {deployment.surge_hosts} more while a deploy rolls"
    all_hosts = total.value
    # Rounded down, so that all hosts together never exceed the limit.
    total.put("/", hosts, "hosts", meaning)
    if total.value > SLOTS:  # the slot table's file has a fixed size
        binding = "slots"
        total.put("<=", SLOTS, binding, "the number of slots in the host's slot table")
    host = total.result("a host")
    why = as_text([*own, *total.lines[begin:]])
    if host < workers * per_worker:
        fewer = "the number of hosts" if is_counted else "GREENLINE_HOSTS"
        raise ConfigError(
            f"{_count(workers, 'worker')} a host need {workers * per_worker} connections "
            f"({by_name} each), there are {host}: {why}; "
            f"lower WEB_CONCURRENCY or {fewer}, or raise what binds"
        )
    first = workers * per_worker
    # A reload has two generations of workers. If both do not fit, the new one waits for the old.
    second = min(first, host - first)
    total.put("-", first, "reserved", f"{by_name}, for {_count(workers, 'worker')}")
    waiting = f"a reload needs {first}: new workers wait for connections of the old ones"
    total.put("-", second, "for a reload", "the same again" if second == first else waiting)
    room = 0
    if exchange is not None:
        # If it does not fit, a pool keeps the one connection that it begins with.
        room = min(workers * sum(exchange.values()), total.value)
        meaning = f"{_named(exchange)}, for {_count(workers, 'worker')}"
        total.put("-", room, "for an exchange", meaning)
    shared = total.result("shared")

    # The 1 is the worker's own reserved connection. A pool that can change its size may use the
    # whole shared part while the others are idle.
    share = Sum().put("", shared, "shared").put("/", workers, "workers").put("+", 1, "reserved")
    even = share.value
    largest = Sum().put("", shared, "shared").put("+", 1, "reserved")
    sums = [share, largest] if exchange is None else [share]
    name, size = cap
    if size is not None:
        for one in sums:
            one.put("<=", size, name)
        if size < even:
            binding = name
    share.result("a worker's pool", "an even share")
    largest.result("a worker's pool", "at most, while others idle")
    more = Sum().put("", host, "a host").put("/", per_worker, "a worker needs")
    more.put("-", workers, "workers").result("more workers", "would fit")
    kept = f"{first + second} reserved" + f" and {room} for an exchange" * (room > 0)
    why = f"{why}, less {kept} = {shared}, by {_count(workers, 'worker')}, and 1"
    if size is not None and size < even:
        why = f"{name}; {why} would give {even}"
    return Plan(
        all_hosts=all_hosts,
        host=host,
        reserved=first + second,
        worker=share.value,
        max_pool_size=largest.value if exchange is None else share.value,
        more_workers=more.value,
        binding=binding,
        reason=why if second == first else f"{why}; {waiting}",
        lines=(
            *(line for limit in limits.values() for line in limit.lines),
            *total.lines,
            *(line for one in [*sums, more] for line in one.lines),
        ),
    )


def _named(numbers: Mapping[str, int]) -> str:
    return " + ".join(f"{name} {number}" for name, number in numbers.items())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

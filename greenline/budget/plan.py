"""
How many connections a host and its workers may hold: arithmetic, no I/O.

1. Each limit has a sum of its own, less what is not ours; the lowest one binds.
2. What is there is divided by the hosts, those that a deploy adds for a while included. Where hosts
   are counted they are not: each is counted when it comes, and what it needs to come is set aside.
3. What a worker holds beside its pool is counted by name.
4. Each worker has those and one connection for its pool reserved, and so has each of a second
   generation, which a reload has alive at once, as far as they fit. The rest is shared.
5. Where a pool cannot change its size, room for its exchange is kept in each worker.
6. Division rounds down, so that all hosts together never exceed what is there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from greenline.budget.sum import Line, Sum, as_text
from greenline.errors import ConfigError
from greenline.slots.file import SLOTS

# Left free on a server: people with psql or mongosh, and commands (``greenline budget``, a
# migration), which connect without a slot.
HEAD_ROOM = 3
# Left free of a role's or a database's limit: commands connect as we do, people as themselves.
COMMANDS = 1
# Where hosts are counted each that comes begins with one connection: so many may come within the
# second or so that the others need to shrink. On a small server it is a quarter of what there is.
NEWCOMERS = 10
# One for readiness, cancelling, looking after the slots and registering the host.
POSTGRES_BESIDE = {"control": 1}
# Of each server: the readiness check's connection, and two for the monitors of each of the two
# clients. mongod 4.4 and newer, alone or in a replica set, streams its changes over one and is
# measured over another; a server that is polled (Amazon DocumentDB) has one less for
# each client, 3 in all. The limit is each server's own, so members of a replica set do not add up.
MONGODB_BESIDE = {"readiness": 1, "monitors": 4}
POSTGRES_EXTRA_A_WORKER = sum(POSTGRES_BESIDE.values())
MONGODB_EXTRA_A_WORKER = sum(MONGODB_BESIDE.values())
# A worker that began small has two clients while it takes the larger one into use.
MONGODB_EXCHANGE = {"old pool": 1, "its monitors": 2}
# Assumed where neither the server nor MONGODB_MAX_CONNECTIONS tells: what the smallest hosted
# servers take (Amazon DocumentDB with 4 GiB), far below what mongod has by default.
MONGODB_DEFAULT_MAX_CONNECTIONS = 1_000
# pymongo's own default for a pool: more would only queue in the server.
MONGODB_DEFAULT_POOL_SIZE = 100


@dataclass(frozen=True)
class PostgresFacts:
    """
    What the server allows our role, and what others hold of it now.

    The names are those of pg_settings, pg_roles and pg_database; -1 is no limit. Others are
    client backends that are not Greenline's: all, those of our role, those in our database.
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
    """Workers a host, hosts, and the hosts more that are there while a deploy rolls."""

    workers: int
    hosts: int = 1
    surge_hosts: int = 1


@dataclass(frozen=True)
class Plan:
    """
    What a host and its workers may hold at one server.

    ``host`` connections in all, its part of ``all_hosts``, of which ``reserved`` are set aside for
    what each worker needs to live; ``worker`` is an even share for a worker's pool, ``pool_most``
    what it may reach while the others idle. ``more_workers`` would still fit. ``binding`` names the
    limit that decides.
    """

    all_hosts: int
    host: int
    reserved: int
    worker: int
    pool_most: int
    more_workers: int
    binding: str
    reason: str
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        most = f", up to {self.pool_most} while others idle" * (self.pool_most > self.worker)
        return f"{self.worker} connections a worker{most} ({self.reason})"


def postgres_plan(
    facts: PostgresFacts,
    deployment: Deployment,
    *,
    pool_size: int | None = None,
    pgbouncer_pool_size: int | None = None,
    is_counted: bool = False,
) -> Plan:
    """
    Return what *deployment* may hold of a Postgres.

    *pool_size* caps a worker's pool, and raises nothing. *pgbouncer_pool_size* is what the
    pgbouncer in front gives all hosts together. With *is_counted* the hosts are those that are
    there now: one that comes begins in a part that is set aside, and surge hosts do not count.

    Raises:
        ConfigError: not even the reserved connections of one generation fit, with the sum; or
            there is a pgbouncer whose limit nobody told.
    """
    if facts.behind_pgbouncer and pgbouncer_pool_size is None:
        raise ConfigError(
            "PGBOUNCER_POOL_SIZE: not set, and DATABASE_URL leads to a pgbouncer (the process id "
            "that the driver was given is not pg_backend_pid()): what it allows cannot be read "
            "through it; set it to the pool_size of this database, as all hosts share it"
        )
    # A pgbouncer's idle backend bears the name of whoever had it last: that tells nothing.
    held, whose = (
        (0, "not told by a pgbouncer") if facts.behind_pgbouncer else (1, "held by them now")
    )
    whole = Sum().put("", facts.max_connections, "max_connections")
    admins = "for administrators"
    whole.put("-", facts.superuser_reserved_connections, "superuser_reserved_connections", admins)
    if facts.reserved_connections and not facts.may_use_reserved:
        whole.put("-", facts.reserved_connections, "reserved_connections", "not for our role")
    whole.put("-", held * facts.others, "others", whose)
    whole.put("-", HEAD_ROOM, "head-room", "people with psql, commands")
    limits = {"max_connections": whole}
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
    return _plan(limits, deployment, POSTGRES_BESIDE, cap, is_counted=is_counted)


def mongodb_plan(
    told: int | None,
    deployment: Deployment,
    *,
    pool_size: int | None = None,
    max_connections: int | None = None,
) -> Plan:
    """
    Return what *deployment* may hold of a MongoDB, ``worker`` being the maxPoolSize.

    *told* is what the server allows, None where it does not say. A share that a worker does not
    use stays unused: pymongo's pool cannot change.

    Raises:
        ConfigError: not even the reserved connections of one generation fit, with the sum.
    """
    known = {"serverStatus.connections": told, "MONGODB_MAX_CONNECTIONS": max_connections}
    limits = {name: Sum().put("", most, name) for name, most in known.items() if most is not None}
    if not limits:
        assumed = "assumed limit"
        why = "the server does not tell; set MONGODB_MAX_CONNECTIONS"
        limits[assumed] = Sum().put("", MONGODB_DEFAULT_MAX_CONNECTIONS, assumed, why)
    for limit in limits.values():
        limit.put("-", HEAD_ROOM, "head-room", "people with mongosh, commands")
    if pool_size is None:
        cap = ("pymongo's maxPoolSize", MONGODB_DEFAULT_POOL_SIZE)
    else:
        cap = ("MONGODB_MAX_POOL_SIZE", pool_size)
    return _plan(limits, deployment, MONGODB_BESIDE, cap, MONGODB_EXCHANGE)


def _plan(
    limits: Mapping[str, Sum],
    deployment: Deployment,
    beside: Mapping[str, int],
    cap: tuple[str, int | None],
    exchange: Mapping[str, int] | None = None,
    *,
    is_counted: bool = False,
) -> Plan:
    """Return the plan; with *exchange* pools are of a fixed size, and that is what it takes."""
    for limit in limits.values():
        limit.result("for all hosts")
    binding = min(limits, key=lambda name: limits[name].value)
    workers = deployment.workers
    per_worker = sum(beside.values()) + 1
    by_name = _named({**beside, "pool": 1})

    total = Sum(value=limits[binding].value)
    if len(limits) > 1:
        total.put("", total.value, "lowest", f"{binding} binds")
    told, begin = limits[binding].lines, len(total.lines)
    hosts, meaning = deployment.hosts, _count(deployment.hosts, "host")
    if is_counted:
        aside = min(NEWCOMERS, max(total.value, 0) // 4)
        total.put("-", aside, "newcomers", "hosts that come begin there")
        meaning += ", as counted now"
    elif deployment.surge_hosts:
        hosts += deployment.surge_hosts
        meaning += f", and {deployment.surge_hosts} more while a deploy rolls"
    all_hosts = total.value
    total.put("/", hosts, "hosts", meaning)
    if total.value > SLOTS:
        binding = "slots"
        total.put("<=", SLOTS, binding, "what the host's slot table can count")
    host = total.result("a host")
    why = as_text([*told, *total.lines[begin:]])
    if host < workers * per_worker:
        fewer = "the number of hosts" if is_counted else "GREENLINE_HOSTS"
        raise ConfigError(
            f"{_count(workers, 'worker')} a host need {workers * per_worker} connections "
            f"({by_name} each), there are {host}: {why}; "
            f"lower WEB_CONCURRENCY or {fewer}, or raise what binds"
        )
    first = workers * per_worker
    second = min(first, host - first)
    total.put("-", first, "reserved", f"{by_name}, for {_count(workers, 'worker')}")
    waiting = f"a reload needs {first}: its workers wait for the old ones'"
    total.put("-", second, "for a reload", "the same again" if second == first else waiting)
    room = 0
    if exchange is not None:
        # Where it does not fit, a pool keeps the one connection that it begins with.
        room = min(workers * sum(exchange.values()), total.value)
        meaning = f"{_named(exchange)}, for {_count(workers, 'worker')}"
        total.put("-", room, "for an exchange", meaning)
    shared = total.result("shared")

    share = Sum().put("", shared, "shared").put("/", workers, "workers").put("+", 1, "reserved")
    even = share.value
    most = Sum().put("", shared, "shared").put("+", 1, "reserved")
    sums = [share, most] if exchange is None else [share]
    name, size = cap
    if size is not None:
        for one in sums:
            one.put("<=", size, name)
        if size < even:
            binding = name
    share.result("a worker's pool", "an even share")
    most.result("a worker's pool", "at most, while others idle")
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
        pool_most=most.value if exchange is None else share.value,
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

"""
How many connections a worker may hold: arithmetic, no I/O.

1. What the server reserves is not ours.
2. What we hold beside the pools is counted by name before the pools get anything.
3. The rest is split evenly between the workers.
"""

from dataclasses import dataclass

# Held by each worker beside its pool: one connection for readiness, one for cancelling.
POSTGRES_EXTRA_A_WORKER = 2
# Left free on the server: a person with psql, and a migration.
POSTGRES_HEAD_ROOM = 2
# Held by each worker at each server beside its pool: the readiness check's connection, and two for
# the monitors of each of the two clients. mongod 4.4 and newer, alone or in a replica set, streams
# its changes over one and is measured over another; a server that is polled (FerretDB, Amazon
# DocumentDB) has one less for each client, 3 in all. The limit is each server's own, so members
# of a replica set do not add up.
MONGODB_EXTRA_A_WORKER = 5
# Assumed where the server does not tell its limit: pymongo's own default for a pool.
MONGODB_DEFAULT_POOL_SIZE = 100


@dataclass(frozen=True)
class PostgresLimits:
    """What the server allows; see the settings of the same names in pg_settings."""

    max_connections: int
    superuser_reserved_connections: int
    reserved_connections: int


@dataclass(frozen=True)
class Share:
    """Connections a worker's pool may hold, and the sum that led there."""

    size: int
    reason: str
    fits: bool = True

    def __str__(self) -> str:
        warning = "" if self.fits else "; THIS DOES NOT FIT, lower the workers or the pool"
        return f"{self.size} connections a worker ({self.reason}){warning}"


def postgres_share(limits: PostgresLimits, workers: int, wanted: int | None = None) -> Share:
    """
    Return a worker's share of the server's connections.

    With *wanted* it is that number, marked when it does not fit. A share is never below 1: a
    worker without any connection could not even say what is wrong.
    """
    reserved = limits.superuser_reserved_connections + limits.reserved_connections
    extra = POSTGRES_EXTRA_A_WORKER * workers
    free = limits.max_connections - reserved - extra - POSTGRES_HEAD_ROOM
    share = free // workers
    reason = (
        f"max_connections {limits.max_connections} - {reserved} reserved "
        f"- {extra} for readiness and cancelling - {POSTGRES_HEAD_ROOM} head-room, "
        f"by {_workers(workers)}"
    )
    if wanted is None:
        return Share(max(share, 1), reason, share >= 1)
    return Share(wanted, f"POSTGRES_POOL_SIZE; {reason} would give {share}", wanted <= share)


def mongodb_share(max_connections: int | None, workers: int, wanted: int | None = None) -> Share:
    """Return a worker's share of *max_connections*, which is None where the server is silent."""
    if max_connections is None:
        size = MONGODB_DEFAULT_POOL_SIZE if wanted is None else wanted
        chosen = "pymongo's default" if wanted is None else "MONGODB_MAX_POOL_SIZE"
        return Share(size, f"{chosen}; the server does not tell its limit")
    extra = MONGODB_EXTRA_A_WORKER * workers
    share = (max_connections - extra) // workers
    reason = f"{max_connections} allowed - {extra} for monitors, by {_workers(workers)}"
    if wanted is None:
        # More than pymongo's default would only queue in the server.
        return Share(min(max(share, 1), MONGODB_DEFAULT_POOL_SIZE), reason, share >= 1)
    return Share(wanted, f"MONGODB_MAX_POOL_SIZE; {reason} would give {share}", wanted <= share)


def _workers(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"

"""What the service's workers tell of their pools, added up."""

import json

from tests.helpers.support import Databases, Service, service, wait_until

IDLE = {"size": 4, "active": 0, "idle": 4, "waiting": 0}


def reported(running: Service, pool: str) -> dict[str, int]:
    """Return what is reported of the pools of that name."""
    keys = {tuple(json.loads(key)): value for key, value in running.get("/totals").json.items()}
    return {key[1]: value for key, value in keys.items() if key[0] == pool}


def test_the_pools_of_both_databases_are_reported_for_all_workers(databases: Databases) -> None:
    """Two workers with two connections each to MongoDB, which are idle; none is waited for."""
    environ = {**databases.environ, "MONGODB_MAX_POOL_SIZE": "2", "WEB_CONCURRENCY": "2"}
    with service(environ, target="tests.e2e.totals:app") as running:
        wait_until(
            lambda: IDLE.items() <= reported(running, "mongodb").items(),
            "all connections to be reported",
        )
        assert {"size", "active", "idle", "waiting"} <= reported(running, "postgres").keys()

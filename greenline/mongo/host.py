"""Hold what this process has of the connections that one MongoDB allows its host."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from pymongo.errors import PyMongoError
from pymongo.uri_parser import split_hosts

from greenline.budget import plans
from greenline.budget.plan import (
    MONGODB_EXTRA_A_WORKER,
    Deployment,
    Plan,
    mongodb_plan,
)
from greenline.errors import ConfigError, StoreDown
from greenline.settings import Sizing
from greenline.slots import SlotTable
from greenline.slots import path as slot_table_path
from greenline.telemetry import counters

log = logging.getLogger(__name__)


class HostShare:
    """
    The host's slot table of one server, and the plan that sizes it.

    :param deployment: the name of the server or servers, from :func:`deployment_of`.
    :param sizing: what the plan is computed from.
    :param name: the pool's name in log lines, str.
    """

    def __init__(self, deployment: str, sizing: Sizing, name: str) -> None:
        self.sizing = sizing
        # None before the server was asked.
        self.plan: Plan | None = None
        self._name = name
        min_a_worker = MONGODB_EXTRA_A_WORKER + 1
        self.slot_table = SlotTable(slot_table_path(deployment), floor=min_a_worker)
        # Before the server was asked: what it has answered to another worker, or what all workers
        # need to ask it.
        min_connections = sizing.workers * min_a_worker
        self.slot_table.resize(max(min_connections, self.slot_table.published), min_connections)
        counters.add(f"{counters.SLOTS}{name}", self.slot_table.stats)

    def __repr__(self) -> str:
        return f"<HostShare {self.slot_table} plan={self.plan}>"

    def close(self) -> None:
        """Give the slots back."""
        plans.pop(self._name, None)
        counters.remove(f"{counters.SLOTS}{self._name}", self.slot_table.stats)
        self.slot_table.close()

    def size(self, max_connections: int | None) -> int:
        """
        Resize the slot table, and return the largest pool of this process.

        :param max_connections: what the server allows, int; None if unknown.
        :raises StoreDown: not even one connection a worker fits.
        """
        sizing = self.sizing
        try:
            plan = self.plan = mongodb_plan(
                max_connections,
                Deployment(sizing.workers, sizing.hosts or 1, sizing.surge_hosts),
                pool_size=sizing.mongodb_max_pool_size,
                max_connections=sizing.mongodb_max_connections,
            )
        except ConfigError as error:  # the request did nothing wrong: the service is not ready
            raise StoreDown(f"MongoDB: {error}") from error
        self.slot_table.resize(plan.host, plan.reserved)
        self.slot_table.publish(plan.host)
        plans[self._name] = plan
        log.debug("%s pool: %s", self._name, plan)
        return plan.worker


def deployment_of(uri: str) -> str:
    """
    Return the name of the deployment in *uri*, which has one slot table: its hosts and ports.

    Two other spellings of one server, such as a host's name and its address, give two names.
    """
    address = urlsplit(uri)
    hosts = address.netloc.rpartition("@")[2]
    if address.scheme == "mongodb":  # with mongodb+srv, the name stands for the hosts
        with suppress(PyMongoError, ValueError):
            return deployment_at(split_hosts(unquote(hosts)))
    return f"{address.scheme}://{hosts.lower()}"


def deployment_at(nodes: Iterable[tuple[str, int | None]]) -> str:
    """
    Return the name of a deployment.

    :param nodes: host and port of each server; None is the port of a socket's path.
    """
    return f"mongodb://{','.join(sorted(f'{host}:{port}'.lower() for host, port in nodes))}"

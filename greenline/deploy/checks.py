"""Gather the facts of a deployment, and ask all checks about them."""

from collections.abc import Iterator

from greenline.deploy import bodies, capacity, gunicorn, nginx, order, proxying, service, trust
from greenline.deploy.facts import Facts
from greenline.deploy.findings import Finding

CHECKS = (*order.CHECKS, *proxying.CHECKS, *bodies.CHECKS, *trust.CHECKS, *capacity.CHECKS)


def gather(nginx_file: str, gunicorn_file: str) -> Facts:
    """
    Read both files and the environment.

    Raises:
        ConfigError: one of them cannot be read, or makes no sense; in one line.
    """
    proxy = nginx.read(nginx_file)
    server, names = gunicorn.read(gunicorn_file)
    routes = proxying.routes_to(server.bind.value, proxy.routes)
    return Facts(proxy, server, service.read(names, gunicorn_file), routes)


def findings(facts: Facts) -> Iterator[Finding]:
    """Return what is out of order, each thing once: many locations may inherit it."""
    seen = set()
    for check in CHECKS:
        for one in check(facts):
            if (one.code, one.where, one.what) not in seen:
                seen.add((one.code, one.where, one.what))
                yield one

"""Gather the facts of a deployment, and run all checks on them."""

from collections.abc import Iterator

from greenline.deploy import bodies, capacity, gunicorn, nginx, order, proxying, service, trust
from greenline.deploy.facts import Facts
from greenline.deploy.findings import Finding

CHECKS = (*order.CHECKS, *proxying.CHECKS, *bodies.CHECKS, *trust.CHECKS, *capacity.CHECKS)


def gather(nginx_file: str, gunicorn_file: str) -> Facts:
    """
    Read both files and the environment.

    :param nginx_file: path of nginx.conf, str.
    :param gunicorn_file: path of gunicorn.conf.py, str.
    :raises ConfigError: one of them cannot be read, or is invalid; the text is one line.
    """
    proxy = nginx.read(nginx_file)
    server, names = gunicorn.read(gunicorn_file)
    routes = proxying.routes_to(server.bind.value, proxy.routes)
    return Facts(proxy, server, service.read(names, gunicorn_file), routes)


def findings(facts: Facts) -> Iterator[Finding]:
    """Return the findings of all checks, without duplicates."""
    # Many locations may inherit the same line of nginx.conf.
    seen = set()
    for check in CHECKS:
        for one in check(facts):
            if (one.code, one.where, one.what) not in seen:
                seen.add((one.code, one.where, one.what))
                yield one

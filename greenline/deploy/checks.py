"""Gather the facts of a deployment, and run all checks on them."""

import os
from typing import NamedTuple

from greenline.budget.cgroup import cpu_limit
from greenline.deploy import gunicorn, nginx, proxying, service
from greenline.deploy.bodies import BODY_CHECKS
from greenline.deploy.capacity import CAPACITY_CHECKS
from greenline.deploy.facts import Facts
from greenline.deploy.findings import Finding, Level
from greenline.deploy.order import ORDER_CHECKS
from greenline.deploy.proxying import PROXYING_CHECKS
from greenline.deploy.trust import TRUST_CHECKS

CHECKS = (*ORDER_CHECKS, *PROXYING_CHECKS, *BODY_CHECKS, *TRUST_CHECKS, *CAPACITY_CHECKS)


class CheckReport(NamedTuple):
    """
    Hold the results of all checks.

    :param findings: the findings, without duplicates.
    :param passed: the number of checks that found no error and no warning, int.
    """

    findings: list[Finding]
    passed: int


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
    # The limit of the container, too: the formula counts the CPUs of its host.
    counts = os.cpu_count(), int(cpu_limit() or 0)
    cpus = frozenset(filter(None, counts))
    return Facts(proxy, server, service.read(names, gunicorn_file), routes, cpus)


def run(facts: Facts) -> CheckReport:
    """Run all checks."""
    # Many locations may inherit the same line of nginx.conf.
    found: dict[tuple[str, str, str], Finding] = {}
    passed = 0
    for check in CHECKS:
        ones = list(check(facts))
        passed += all(one.level == Level.REMARK for one in ones)
        for one in ones:
            key = one.code, one.where, one.what
            if key in found:
                # The same problem of several locations: each may need an edit of its own.
                one = one._replace(edits=tuple(dict.fromkeys((*found[key].edits, *one.edits))))
            found[key] = one
    return CheckReport(list(found.values()), passed)

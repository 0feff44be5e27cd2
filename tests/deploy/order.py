"""
The order of timeouts in our own files, from nginx to the tool that stops the service.

``greenline check-deploy`` knows what nginx.conf, gunicorn.conf.py and the environment say; here is
what is beside it in this repository: the statements' limit, the supervisors, and the bodies'.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import databases, factory
from greenline.deploy import order
from greenline.deploy.checks import gather
from greenline.deploy.facts import Facts
from greenline.deploy.order import Step, Timeout
from tests.helpers.support import SETTINGS

COMPOSE = "deploy/compose.yml"
KUBERNETES = "deploy/kubernetes"
SYSTEMD = "deploy/systemd/greenline.service"
FILES = ("deploy/nginx.conf", "gunicorn.conf.py", COMPOSE, SYSTEMD)
URLS = {"DATABASE_URL": "postgresql://h/d", "MONGODB_URI": "mongodb://h"}
WHY = "who stops kills before the requests in progress have had their time"


def read(folder: Path, environ: Mapping[str, str]) -> Facts:
    """Return what the files in *folder* say, where the service has no other environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(SETTINGS):
                patch.delenv(name)
        for name, value in {**URLS, **environ}.items():
            patch.setenv(name, value)
        return gather(str(folder / FILES[0]), str(folder / FILES[1]))


def steps(folder: Path, environ: Mapping[str, str]) -> Iterator[Step]:
    """Return every step, from an idle connection to the stop timeouts."""
    facts = read(folder, environ)
    yield from order.steps(facts)
    request_s = request_timeout_s(facts)
    yield Step(
        "statement",
        Timeout("statement_timeout", databases.statement_limit_s(request_s), "app/databases.py"),
        Timeout("REQUEST_TIMEOUT", request_s, "config"),
        "a statement outlives its request",
        "",
    )
    stop = graceful(facts)
    yield Step("compose", stop, compose(folder), WHY, "")
    yield Step("systemd", stop, systemd(folder), WHY, "")
    pre_stop_s, grace, drain = kubernetes(folder)
    stop = graceful(read(folder, {**drain, **environ}))
    stop = stop._replace(name=f"preStop + {stop.name}", seconds=pre_stop_s + stop.seconds)
    yield Step("kubernetes", stop, grace, WHY, "")


def out_of_order(folder: Path, environ: Mapping[str, str]) -> set[str]:
    """Return the codes of what does not hold."""
    broken = {one.code for one in steps(folder, environ) if not one.holds()}
    limits = {route.max_body_bytes.value for route in read(folder, environ).routes}
    return broken | ({"body"} if limits != {factory.MAX_JSON_BYTES} else set())


def request_timeout_s(facts: Facts) -> float:
    """Return the deadline of a request: config tells it, or its default."""
    assert facts.service.request_timeout_s is not None
    return facts.service.request_timeout_s.value


def graceful(facts: Facts) -> Timeout:
    """Return for how long a stop may last."""
    found = facts.gunicorn.graceful_timeout_s
    return Timeout("graceful_timeout", found.value, found.where)


def compose(folder: Path) -> Timeout:
    """Return what docker compose grants."""
    document = yaml.safe_load((folder / COMPOSE).read_text())
    found = document["services"]["service"]["stop_grace_period"]
    return Timeout("stop_grace_period", _number(found), COMPOSE)


def systemd(folder: Path) -> Timeout:
    """Return what systemd grants."""
    (found,) = re.findall(r"^TimeoutStopSec=(.+)$", (folder / SYSTEMD).read_text(), re.MULTILINE)
    return Timeout("TimeoutStopSec", _number(found), SYSTEMD)


def kubernetes(folder: Path) -> tuple[float, Timeout, dict[str, str]]:
    """Return the seconds of preStop, what Kubernetes grants, and the environment's DRAIN_DELAY."""
    paths = sorted(path for path in (folder / KUBERNETES).rglob("*") if path.is_file())
    texts = [re.sub("#.*", "", path.read_text()) for path in paths]
    documents = [
        one
        for path in paths
        if path.suffix == ".yaml"
        for one in yaml.safe_load_all(path.read_text())
    ]
    deployments = [one for one in documents if one.get("kind") == "Deployment"]
    (granted,) = _found(deployments, "terminationGracePeriodSeconds")
    pre_stop_s = sum(_seconds(one) for one in _found(deployments, "preStop"))
    drains = re.findall(r'DRAIN_DELAY\W+(?:value\W+)?"?(\d+)', "\n".join(texts))
    grace = Timeout("terminationGracePeriodSeconds", float(granted), KUBERNETES)
    return pre_stop_s, grace, {"DRAIN_DELAY": drains[-1]} if drains else {}


def _seconds(pre_stop: Any) -> float:
    if "sleep" in pre_stop:
        return float(pre_stop["sleep"]["seconds"])
    (found,) = re.findall(r"\bsleep\W+(\d+)", str(pre_stop["exec"]["command"]))
    return float(found)


def _found(node: Any, key: str) -> Iterator[Any]:
    """Return what *key* has anywhere in a document."""
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        node = list(node.values())
    if isinstance(node, list):
        for one in node:
            yield from _found(one, key)


def _number(found: str) -> float:
    return float(str(found).removesuffix("s"))

"""
The picture of docs/deploy.md: all timeouts on one time axis, from browser to database.

``python -m tests.deploy.picture`` draws it anew from our files, after a number was changed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from app import databases
from greenline.deploy import nginx
from greenline.deploy.order import keepalive
from greenline.lifecycle.drain import LAST_S
from tests.deploy.order import (
    FILES,
    compose,
    graceful,
    kubernetes,
    read,
    request_timeout_s,
    systemd,
)
from tests.helpers.support import CHECKOUT

PAGE = CHECKOUT / "docs" / "deploy.md"
PICTURE = re.compile(r"(?<=<!-- python -m tests\.deploy\.picture -->\n```text\n).*?(?=```)", re.S)
AXIS_S, STEP_S = 60, 5


class Bar(NamedTuple):
    """A time with its name, which begins at *start_s* of the axis."""

    name: str
    seconds: float
    start_s: float = 0.0


def draw(groups: Mapping[str, Sequence[Bar]]) -> str:
    """Return *groups* of bars on one axis, a column a second."""
    width = max(len(bar.name) for bars in groups.values() for bar in bars)
    margin = " " * (width + 10)
    marks = range(0, AXIS_S + 1, STEP_S)
    lines = [
        margin + "".join(f"{mark:<{STEP_S}}" for mark in marks).rstrip() + " s",
        margin + "|" + ("-" * (STEP_S - 1) + "|") * (len(marks) - 1),
    ]
    for title, bars in groups.items():
        lines += ["", title]
        for bar in bars:
            start, end = round(bar.start_s), round(bar.start_s + bar.seconds)
            line = " " * start + "=" * (end - start) + "|"
            lines.append(f"  {bar.name:<{width}}  {bar.seconds:>5g} {line}")
    return "\n".join(lines) + "\n"


def ours(folder: Path) -> str:
    """Return the picture of our files."""
    facts = read(folder, {})
    (route,) = facts.routes
    said = dict(_times(nginx.tree(str(folder / FILES[0])), "server"))
    request_s, drain_s = request_timeout_s(facts), facts.service.drain_delay_s.value
    stop_s, idle_s = graceful(facts).seconds, keepalive(facts).seconds
    pre_stop_s, granted, environ = kubernetes(folder)
    pod_s = graceful(read(folder, environ)).seconds
    return draw(
        {
            "browser - nginx, for the next bytes": [
                Bar(name, said[name])
                for name in ("client_header_timeout", "client_body_timeout", "send_timeout")
            ],
            "nginx - gunicorn, while no request is on the connection": [
                Bar("keepalive_timeout (upstream)", route.upstream.keepalive_timeout_s.value),
                Bar("keepalive (gunicorn)", idle_s),
            ],
            "nginx - gunicorn, a request": [
                Bar("proxy_connect_timeout", route.connect_timeout_s.value),
                Bar("proxy_read_timeout", route.read_timeout_s.value),
            ],
            "the service": [Bar("REQUEST_TIMEOUT", request_s)],
            "the service - Postgres": [
                Bar("statement_timeout", databases.statement_limit_s(request_s))
            ],
            "a stop, from SIGTERM": [
                Bar("DRAIN_DELAY", drain_s),
                Bar("the last request's time", request_s, drain_s),
                Bar("what is left is cut", stop_s - min(LAST_S, stop_s / 4)),
                Bar("graceful_timeout", stop_s),
                Bar("stop_grace_period (compose)", compose(folder).seconds),
                Bar("TimeoutStopSec (systemd)", systemd(folder).seconds),
            ],
            "a stop in Kubernetes": [
                Bar("preStop", pre_stop_s),
                Bar("graceful_timeout", pod_s, pre_stop_s),
                Bar(granted.name, granted.seconds),
            ],
        }
    )


def _times(block: nginx.Block, level: str) -> Iterator[tuple[str, float]]:
    """Return what the only block *level* says itself, where it is a number of seconds."""
    for one in block:
        if one.name == level:
            for said in one.block:
                if said.args and (found := re.fullmatch(r"(\d+)s", said.args[0])):
                    yield said.name, float(found[1])
        elif one.name == "http":
            yield from _times(one.block, level)


if __name__ == "__main__":
    PAGE.write_text(PICTURE.sub(lambda _: ours(CHECKOUT), PAGE.read_text(), count=1))

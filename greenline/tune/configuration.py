"""Write what is recommended as settings to copy: a gunicorn.conf.py, with nginx's lines in it."""

from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

from greenline import settings
from greenline.deploy.edits import KEEPALIVE_S, REST_S, graceful_s
from greenline.telemetry.access_log import printable
from greenline.tune.results import Recommendation, Result, SettingName
from greenline.tune.server import WORKER

FIRST = "# greenline tune "  # of a file that is written here
PROXY_KEEPALIVE_S = 4  # nginx has to close an idle connection before gunicorn does
PROXY_CONNECT_S = 2


def environment(result: Result) -> dict[str, str]:
    """Return the variables of all recommendations."""
    return {
        name: value for one in result.recommendations for name, value in one.environment.items()
    }


def gunicorn(result: Result) -> str:
    """Return the text of a gunicorn.conf.py, which ``greenline check-deploy`` accepts."""
    return "\n".join(_lines(result)) + "\n"


def write(result: Result, file: Path) -> None:
    """Write that text to *file*."""
    file.write_text(gunicorn(result), encoding="utf-8")


def may_write(file: Path) -> bool:
    """Return whether *file* is not there, or was written by ``greenline tune``."""
    return not file.exists() or file.read_bytes().startswith(FIRST.encode())


def nginx(result: Result) -> dict[str, list[str]]:
    """Return the lines of each block of nginx.conf, by its name; none if none is recommended."""
    kept = result.recommended("keepalive")
    if kept is None:
        return {}
    request_s = settings.REQUEST_TIMEOUT.read()
    return {
        "upstream": [f"keepalive {kept.value:.0f};", f"keepalive_timeout {PROXY_KEEPALIVE_S}s;"],
        "location": [
            # Without these two no connection is kept.
            "proxy_http_version 1.1;",
            'proxy_set_header Connection "";',
            f"proxy_connect_timeout {PROXY_CONNECT_S}s;",
            # A request that has a deadline is answered by the application, not by nginx.
            *([f"proxy_read_timeout {ceil(request_s) + REST_S}s;"] if request_s else []),
        ],
    }


def _lines(result: Result) -> Iterator[str]:
    objective = result.objective
    yield f"{FIRST}{result.target}, {result.at}: {result.offered}."
    yield (
        f"# The objective: p99 {objective.p99_s * 1e3:g} ms, {objective.errors:.2%} errors; on "
        f"{result.machine.cores} processors."
    )
    for warning in result.warnings:
        # One line of printable text, whatever an error of the application says: it is executed.
        yield f"# Warning: {printable(warning)}"
    yield f'worker_class = "{WORKER}"'
    yield from _setting(result, "workers", "workers")
    yield from _setting(result, "worker_connections", "worker_connections")
    yield f"keepalive = {KEEPALIVE_S}  # seconds, more than nginx's keepalive_timeout"
    yield "timeout = 30  # of a worker's heartbeat, not of a request"
    if request_s := settings.REQUEST_TIMEOUT.read():
        seconds = graceful_s(settings.DRAIN_DELAY.read(), request_s)
        yield f"graceful_timeout = {seconds}  # DRAIN_DELAY + REQUEST_TIMEOUT, and a rest"
    yield 'worker_tmp_dir = "/dev/shm"'
    if variables := environment(result):
        for one in result.recommendations:
            if one.environment and one.name != "workers":
                yield from _comment(one)
        yield "raw_env = ["
        yield from (f'    "{name}={value}",' for name, value in variables.items())
        yield "]"
    yield from _comments(result, ["keepalive"])
    for block, lines in nginx(result).items():
        yield f"# In the {block} block of nginx:"
        yield from (f"#     {line}" for line in lines)
    if postgres := result.recommended("max_connections"):
        yield from _comment(postgres)
        yield "# In postgresql.conf:"
        yield f"#     max_connections = {postgres.value:.0f}"
    yield from _comments(result, ["memory_mib"])


def _setting(result: Result, name: SettingName, setting: str) -> Iterator[str]:
    if (one := result.recommended(name)) is not None:
        yield from _comment(one)
        yield f"{setting} = {one.value:.0f}"


def _comments(result: Result, names: Sequence[SettingName]) -> Iterator[str]:
    for name in names:
        if (one := result.recommended(name)) is not None:
            yield from _comment(one)


def _comment(one: Recommendation) -> Iterator[str]:
    yield f"# {one.name}: {one.measured}"

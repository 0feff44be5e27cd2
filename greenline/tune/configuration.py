"""Write what is recommended as settings to copy: a gunicorn.conf.py, with nginx's lines in it."""

from collections.abc import Iterator, Sequence

from greenline.tune.results import Recommendation, Result, SettingName
from greenline.tune.server import WORKER

KEEPALIVE_S = 5  # of gunicorn: more than nginx keeps an idle connection
PROXY_KEEPALIVE_S = 4


def environment(result: Result) -> dict[str, str]:
    """Return the variables of all recommendations."""
    return {
        name: value for one in result.recommendations for name, value in one.environment.items()
    }


def gunicorn(result: Result) -> str:
    """Return the text of a gunicorn.conf.py, which ``greenline check-deploy`` accepts."""
    return "\n".join(_lines(result)) + "\n"


def nginx(result: Result) -> list[str]:
    """Return the lines of an ``upstream`` block; none if nothing is recommended for it."""
    kept = result.recommended("keepalive")
    if kept is None:
        return []
    return [f"keepalive {kept.value:.0f};", f"keepalive_timeout {PROXY_KEEPALIVE_S}s;"]


def _lines(result: Result) -> Iterator[str]:
    objective = result.objective
    yield f"# greenline tune {result.target}, {result.at}: {result.offered}."
    yield (
        f"# The objective: p99 {objective.p99_s * 1e3:g} ms, {objective.errors:.2%} errors; on "
        f"{result.machine.cores} processors."
    )
    yield f'worker_class = "{WORKER}"'
    yield from _setting(result, "workers", "workers")
    yield from _setting(result, "worker_connections", "worker_connections")
    yield f"keepalive = {KEEPALIVE_S}  # seconds, more than nginx's keepalive_timeout"
    yield "timeout = 30  # of a worker's heartbeat, not of a request"
    yield 'worker_tmp_dir = "/dev/shm"'
    if variables := environment(result):
        for one in result.recommendations:
            if one.environment and one.name != "workers":
                yield from _comment(one)
        yield "raw_env = ["
        yield from (f'    "{name}={value}",' for name, value in variables.items())
        yield "]"
    if lines := nginx(result):
        yield from _comments(result, ["keepalive"])
        yield "# In the upstream block of nginx:"
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

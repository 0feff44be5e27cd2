"""
Define the console script ``greenline``, with its commands ``budget``, ``capacity``,
``check-deploy``, ``doctor``, ``routes``, ``stacks``, ``top`` and ``tune``.

Internal: applications import nothing from here.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from greenline import __version__, settings
from greenline.budget import DOES_NOT_FIT, FITS, UNREACHABLE
from greenline.budget.plan import (
    Deployment,
    Plan,
    PostgresFacts,
    mongodb_plan,
    postgres_plan,
    table,
)
from greenline.errors import ConfigError, GreenlineError
from greenline.lazy import needs_extra
from greenline.settings import Sizing

if TYPE_CHECKING:
    from pymongo import MongoClient

ANSWER_TIMEOUT_S = 3
POSTGRES, MONGODB = "Postgres", "MongoDB"
CEILING = "A ceiling, not advice: greenline tune measures how many connections the workers need."
# The options that describe a supposed Postgres, besides --max-connections, as fields of its facts.
SUPPOSED = {
    "superuser_reserved": "superuser_reserved_connections",
    "reserved": "reserved_connections",
    "role_limit": "rolconnlimit",
    "database_limit": "datconnlimit",
    "others": "others",
}
# Not imported here: each start of the service runs `budget`, and would wait for all of them.
ELSEWHERE = {
    "capacity": "tune.capacity_command:capacity",
    "check-deploy": "deploy.command:check_deploy",
    "doctor": "doctor.command:doctor",
    "stacks": "ops.command:show_stacks",
    "top": "ops.command:top",
    "tune": "tune.command:tune",
}
SOME, ANY = click.IntRange(min=1), click.IntRange(min=0)


class BudgetOutcome(NamedTuple):
    """
    Hold the result for one server.

    :param plan: the plan, None if there is none.
    :param problem: why there is no plan, str, default empty.
    :param status: the exit status for this server, int, default FITS.
    :param hosts: the number of registered hosts, int; default None, they are not counted.
    """

    plan: Plan | None
    problem: str = ""
    status: int = FITS
    hosts: int | None = None


class Commands(click.Group):
    """The commands; one of another module is imported when it is asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names, sorted."""
        return sorted({*super().list_commands(context), *ELSEWHERE})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command of that name, None if there is none."""
        if name not in ELSEWHERE:
            return super().get_command(context, name)
        module, _, attribute = ELSEWHERE[name].partition(":")
        command: click.Command = getattr(import_module(f"greenline.{module}"), attribute)
        return command


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="greenline", message="%(prog)s %(version)s")
def main() -> None:
    """Green gunicorn workers that keep to the connection limits of their databases."""


@main.command()
@click.option("--workers", type=SOME, help="Workers a host (WEB_CONCURRENCY; the CPU limit; 2).")
@click.option("--hosts", type=SOME, help="Hosts (GREENLINE_HOSTS, 1).")
@click.option("--surge-hosts", type=ANY, help="More for a while (GREENLINE_SURGE_HOSTS, 1).")
@click.option("--postgres-pool-size", type=SOME, help="As POSTGRES_POOL_SIZE.")
@click.option("--pgbouncer-pool-size", type=SOME, help="As PGBOUNCER_POOL_SIZE.")
@click.option("--mongodb-max-pool-size", type=SOME, help="As MONGODB_MAX_POOL_SIZE.")
@click.option("--max-connections", type=SOME, help="Ask no server; suppose a Postgres with these.")
@click.option("--superuser-reserved", type=ANY, help="With that: reserved ones (3).")
@click.option("--reserved", type=ANY, help="With that: reserved_connections (0).")
@click.option("--role-limit", type=ANY, help="With that: the limit of our role.")
@click.option("--database-limit", type=ANY, help="With that: the limit of our database.")
@click.option("--others", type=ANY, help="With that: connections that others hold (0).")
@click.option("--mongodb-max-connections", type=SOME, help="Ask no server; suppose a MongoDB.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def budget(context: click.Context, /, as_json: bool, **given: int | None) -> None:
    """
    Show how many connections a host and its workers may hold, as a sum to check by hand.

    The sum is a ceiling, not advice: greenline tune measures how many they need.

    Asks the servers in DATABASE_URL and MONGODB_URI, for three seconds at most. Exits with 0 when
    the connections fit, 1 when they do not or the limit of a pgbouncer is unknown, 2 for wrong use
    or a wrong setting, 3 when a server cannot be asked.
    """
    try:
        sizing = _sizing(given)
        outcomes = _suppose(given, sizing) or _ask(sizing)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    if sizing.hosts is None:
        click.echo(f"GREENLINE_HOSTS is auto: {_counted(outcomes.get(POSTGRES))}", err=True)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_documents(outcomes))))
    else:
        click.echo("\n\n".join(_table(name, outcome) for name, outcome in outcomes.items()))
        if any(outcome.plan for outcome in outcomes.values()):
            click.echo(f"\n{CEILING}")
    failed = {name: outcome for name, outcome in outcomes.items() if outcome.status != FITS}
    for name, outcome in failed.items():
        click.echo(f"Error: {name}: {outcome.problem}", err=True)
    statuses = [outcome.status for outcome in failed.values()]
    # The lowest: that the connections do not fit is certain, whether or not the other server
    # can be asked.
    context.exit(min(statuses, default=FITS))


@main.command()
@click.argument("target")
def routes(target: str) -> None:
    """
    Show how the routes of a Flask application are served with GREENLINE_FAST_FLASK=1.

    TARGET is module:app, as gunicorn takes it. Loads it as a worker does. What is left to Flask and
    Werkzeug is listed with the reason. Exits with 1 when it cannot be loaded, or has no Flask
    application.
    """
    from greenline.doctor.probe import configured
    from greenline.patch import patch_all

    patch_all()
    try:
        with _needed("flask"):
            from greenline.flask.compat import misfit
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    if reason := misfit():
        raise click.ClickException(reason)
    from greenline.flask.routes import report

    try:
        application = configured(target).wsgi()
    except Exception as error:
        raise click.ClickException(f"{target}: {type(error).__name__}: {error}") from error
    lines = list(report(application))
    if not lines:
        raise click.ClickException(f"{target}: there is no Flask application in the process")
    click.echo("\n".join(lines))


def _sizing(given: Mapping[str, int | None]) -> Sizing:
    """Return the sizing of the environment, with the options in *given* instead of its values."""
    # --mongodb-max-connections describes a supposed server, not the variable of that name.
    names = set(Sizing._fields) - {"mongodb_max_connections"}
    chosen = {name: given[name] for name in names if given[name] is not None}
    return settings.sizing()._replace(**chosen)  # type: ignore[arg-type]


def _suppose(given: Mapping[str, int | None], sizing: Sizing) -> dict[str, BudgetOutcome]:
    """Return the plans for the servers that *given* describes; empty if it describes none."""
    outcomes = {}
    supposed: dict[str, Any] = {
        field: given[name] for name, field in SUPPOSED.items() if given[name] is not None
    }
    if given["max_connections"] is not None:
        facts = PostgresFacts(given["max_connections"], **supposed)
        outcomes[POSTGRES] = _outcome(partial(_postgres_plan, facts, sizing))
    elif supposed:
        raise click.UsageError("what is supposed of a Postgres needs --max-connections")
    if given["mongodb_max_connections"] is not None:
        of_mongodb = partial(_mongodb_plan, given["mongodb_max_connections"], sizing)
        outcomes[MONGODB] = _outcome(of_mongodb)
    return outcomes


def _ask(sizing: Sizing) -> dict[str, BudgetOutcome]:
    """Return the plans for the servers in the environment, which are asked concurrently."""
    url, uri = settings.databases()
    asks: dict[str, Callable[[], BudgetOutcome]] = {
        POSTGRES: partial(BudgetOutcome, None, f"{settings.DATABASE_URL.name} is not set"),
        MONGODB: partial(BudgetOutcome, None, f"{settings.MONGODB_URI.name} is not set"),
    }
    if not url and not uri:
        raise ConfigError("DATABASE_URL, MONGODB_URI: neither is set; or try --max-connections")
    # Drivers are imported here, not at the top: an application may have only one of them.
    if url:
        with settings.DATABASE_URL.named(), _needed("postgres"):
            from greenline.postgres.connect import check_url

            check_url(url)
        asks[POSTGRES] = partial(_ask_postgres, url, sizing)
    if uri:
        with settings.MONGODB_URI.named(), _needed("mongo"):
            from greenline.mongo.client import make_client

            # Opens no socket, but checks the URI: a wrong one is an error of the settings.
            client = make_client(uri, {})
        asks[MONGODB] = partial(_ask_mongodb, client, sizing)
    # Threads, as gevent does not patch this process.
    with ThreadPoolExecutor(len(asks)) as threads:
        asked = {name: threads.submit(ask) for name, ask in asks.items()}
    return {name: one.result() for name, one in asked.items()}


def _ask_postgres(url: str, sizing: Sizing) -> BudgetOutcome:
    import psycopg2

    from greenline.postgres.errors import first_line
    from greenline.postgres.hosts import require_sessions
    from greenline.postgres.limits import APPLICATION, read_facts
    from greenline.postgres.registry import count_hosts

    hosts = None

    def compute() -> Plan:
        nonlocal hosts
        with closing(
            psycopg2.connect(
                url, connect_timeout=ANSWER_TIMEOUT_S, fallback_application_name=APPLICATION
            )
        ) as conn:
            facts = read_facts(conn)
            # GREENLINE_HOSTS=auto: hosts register themselves by advisory locks, which a pgbouncer
            # in transaction mode does not keep.
            if sizing.hosts is not None:
                return _postgres_plan(facts, sizing)
            require_sessions(facts)
            hosts = count_hosts(conn)
            # None is registered before the first deployment; the plan is for one then.
            return _postgres_plan(facts, sizing, max(hosts, 1))

    try:
        # `hosts` is read after the call, which sets it.
        return _outcome(compute)._replace(hosts=hosts)
    except psycopg2.Error as error:
        return BudgetOutcome(None, first_line(error), UNREACHABLE, hosts)


def _counted(postgres: BudgetOutcome | None) -> str:
    if postgres is None or postgres.hosts is None:
        return "this is for one host, --hosts asks for more"
    return f"{postgres.hosts} {'is' if postgres.hosts == 1 else 'are'} registered now"


def _ask_mongodb(client: "MongoClient[dict[str, Any]]", sizing: Sizing) -> BudgetOutcome:
    import pymongo
    from pymongo.errors import PyMongoError

    from greenline.mongo.errors import first_sentence
    from greenline.mongo.limits import read_max_connections

    try:
        with client, pymongo.timeout(ANSWER_TIMEOUT_S):
            max_connections = read_max_connections(client)
    except (PyMongoError, GreenlineError) as error:
        return BudgetOutcome(None, first_sentence(error), UNREACHABLE)
    return _outcome(partial(_mongodb_plan, max_connections, sizing))


def _outcome(compute: Callable[[], Plan]) -> BudgetOutcome:
    try:
        return BudgetOutcome(compute())
    except ConfigError as error:
        return BudgetOutcome(None, str(error), DOES_NOT_FIT)


def _postgres_plan(facts: PostgresFacts, sizing: Sizing, hosts: int = 1) -> Plan:
    return postgres_plan(
        facts,
        _deployment(sizing, hosts),
        pool_size=sizing.postgres_pool_size,
        pgbouncer_pool_size=sizing.pgbouncer_pool_size,
        is_counted=sizing.hosts is None,
    )


def _mongodb_plan(server_limit: int | None, sizing: Sizing) -> Plan:
    return mongodb_plan(
        server_limit,
        _deployment(sizing),
        pool_size=sizing.mongodb_max_pool_size,
        max_connections=sizing.mongodb_max_connections,
    )


def _deployment(sizing: Sizing, counted: int = 1) -> Deployment:
    return Deployment(sizing.workers, sizing.hosts or counted, sizing.surge_hosts)


def _documents(outcomes: Mapping[str, BudgetOutcome]) -> dict[str, Any]:
    """Return the JSON document: for each server a plan, an error, or null if it is not set."""
    return {
        name.lower(): {"error": one.problem} if one.status != FITS else one.plan
        for name, one in outcomes.items()
    }


def _table(name: str, outcome: BudgetOutcome) -> str:
    plan = outcome.plan
    if plan is None:
        return f"{name}: {'no plan' if outcome.status != FITS else outcome.problem}"
    return table(name, plan)


@contextmanager
def _needed(extra: str) -> Iterator[None]:
    """Translate a failed import in the block to a ConfigError that names *extra*."""
    try:
        with needs_extra(extra):
            yield
    except ModuleNotFoundError as error:
        raise ConfigError(str(error)) from error

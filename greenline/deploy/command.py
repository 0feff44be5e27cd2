"""Define the command ``greenline check-deploy``, which prints the findings of all checks."""

import click
import msgspec

from greenline.deploy.findings import Finding, Level
from greenline.errors import ConfigError
from greenline.extras import needs_extra

FILE = click.Path(exists=True, dir_okay=False)
LEVELS = list(Level)
WIDTH = 100


@click.command("check-deploy")
@click.option("--nginx", "nginx_file", type=FILE, default="deploy/nginx.conf", show_default=True)
@click.option("--gunicorn", "gunicorn_file", type=FILE, default="gunicorn.conf.py",
              show_default=True)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check_deploy(
    context: click.Context, /, nginx_file: str, gunicorn_file: str, as_json: bool
) -> None:
    """
    Report contradictions between nginx, gunicorn and the service.

    Reads both files and the environment: run it with the environment of the service. Exits with 0
    when there is no error, 1 when there is one, 2 for wrong use or when something cannot be read.
    """
    try:
        found = _check(nginx_file, gunicorn_file)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    # Printed in any case: the exit status alone depends on the level.
    if as_json:
        documents = [one._asdict() for one in found]
        click.echo(msgspec.json.format(msgspec.json.encode(documents)))
    else:
        click.echo("\n\n".join([*map(_block, found), _summary(found)]))
    context.exit(int(any(one.level == Level.ERROR for one in found)))


def _check(nginx_file: str, gunicorn_file: str) -> list[Finding]:
    try:
        with needs_extra("deploy"):
            import crossplane  # noqa: F401  brought by the extra

            from greenline.deploy.checks import findings, gather
    except ModuleNotFoundError as error:
        raise ConfigError(str(error)) from error
    found = findings(gather(nginx_file, gunicorn_file))
    # Stable, so that findings of one level stay in the order of the checks.
    return sorted(found, key=lambda one: LEVELS.index(one.level))


def _block(finding: Finding) -> str:
    head = f"{finding.level}: {finding.where}: {finding.what} [{finding.code}]"
    return "\n".join([head, _wrapped("why", finding.why), _wrapped("fix", finding.fix)])


def _wrapped(title: str, text: str) -> str:
    margin = " " * (len(title) + 4)
    return click.wrap_text(text, WIDTH, initial_indent=f"  {title}: ", subsequent_indent=margin)


def _summary(found: list[Finding]) -> str:
    counts = ((level, sum(one.level == level for one in found)) for level in LEVELS)
    numbers = [f"{count} {level}{'s' * (count > 1)}" for level, count in counts if count]
    is_in_order = all(one.level == Level.REMARK for one in found)
    return "nothing is out of order; " * is_in_order + ", ".join(numbers)

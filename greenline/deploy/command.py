"""Define the command ``greenline check-deploy``, which prints the findings of all checks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from greenline.deploy.correction import Snippet, snippets
from greenline.deploy.findings import Finding, Level, counted
from greenline.errors import ConfigError
from greenline.lazy import needs_extra

if TYPE_CHECKING:
    from greenline.deploy.checks import CheckReport

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
    Report contradictions between nginx, gunicorn and the service, and print the corrected lines.

    Reads both files and the environment: run it with the environment of the service. A
    gunicorn.conf.py that requires a variable needs it here too, with any address, such as
    DATABASE_URL=postgresql://user:password@host:5432/database; no server is asked. A part of a
    configuration can be checked as well, such as a file of sites-available. Exits with 0 when there
    is no error, 1 when there is one, 2 for wrong use or when something cannot be read.
    """
    try:
        report = _check(nginx_file, gunicorn_file)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    # Stable, so that findings of one level stay in the order of the checks.
    found = sorted(report.findings, key=lambda one: LEVELS.index(one.level))
    # Printed in any case: the exit status alone depends on the level.
    if as_json:
        documents = [one._asdict() for one in found]
        click.echo(msgspec.json.format(msgspec.json.encode(documents)))
    else:
        blocks = [*map(_block, found), _summary(found, report.passed), *_corrections(found)]
        click.echo("\n\n".join(blocks))
    context.exit(int(any(one.level == Level.ERROR for one in found)))


def _check(nginx_file: str, gunicorn_file: str) -> "CheckReport":
    try:
        with needs_extra("deploy"):
            import crossplane  # noqa: F401  brought by the extra

            from greenline.deploy.checks import gather, run
    except ModuleNotFoundError as error:
        raise ConfigError(str(error)) from error
    return run(gather(nginx_file, gunicorn_file))


def _block(finding: Finding) -> str:
    head = f"{finding.level}: {finding.where}: {finding.what} [{finding.code}]"
    return "\n".join([head, _wrapped("why", finding.why), _wrapped("fix", finding.fix)])


def _wrapped(title: str, text: str) -> str:
    margin = " " * (len(title) + 4)
    return click.wrap_text(text, WIDTH, initial_indent=f"  {title}: ", subsequent_indent=margin)


def _summary(found: list[Finding], passed: int) -> str:
    counts = [(level, sum(one.level == level for one in found)) for level in LEVELS]
    numbers = [counted(count, level) for level, count in counts if count]
    is_in_order = all(one.level == Level.REMARK for one in found)
    numbers.append(f"{counted(passed, 'check')} passed")
    return "nothing is out of order; " * is_in_order + ", ".join(numbers)


def _corrections(found: list[Finding]) -> Iterator[str]:
    """Yield the corrected lines to paste, and the codes of the findings that they leave."""
    if corrected := snippets(edit for one in found for edit in one.edits):
        yield "Corrected lines, to paste:"
        yield from map(_pasted, corrected)
    left = {one.code for one in found if one.level != Level.REMARK and not one.edits}
    if left:
        yield f"Not corrected above, see the fix: {', '.join(sorted(left))}"


def _pasted(snippet: Snippet) -> str:
    if snippet.lines is None:
        title = f"{snippet.file}, at its end" if snippet.file else "the environment of the service"
    else:
        first, last = snippet.lines
        lines = f"lines {first}-{last}" if last > first else f"line {first}"
        title = f"{snippet.file}, in place of {lines}"
    return f"# {title}:\n{snippet.text}"

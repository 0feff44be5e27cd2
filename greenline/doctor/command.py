"""Define the command ``greenline doctor``."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from greenline import settings
from greenline.deploy.findings import Level
from greenline.doctor.findings import Facts
from greenline.errors import ConfigError
from greenline.lazy import needs_extra

if TYPE_CHECKING:
    from greenline.doctor.examine import Examined
    from greenline.doctor.project import Project

PROGRESS_S = 2.0
PGBOUNCER_PORT = "6432"
RECURSION = 10_000  # a chain of a thousand + signs is nested that deeply


@click.command("doctor")
@click.argument("target")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--sarif", "form", flag_value="sarif", help="Print SARIF 2.1.0, for code scanning.")
@click.option("--github", "form", flag_value="github", help="Print GitHub's annotations.")
@click.pass_context
def doctor(context: click.Context, /, target: str, form: str | None) -> None:
    """
    Report what in an application goes wrong on a green worker.

    TARGET is what gunicorn is given, such as shop.wsgi:app: its code in the current folder is read,
    and it is imported once, in a process of its own. A folder is read and not imported. Exits with
    0 when there is no error, 1 when there is one, 2 for wrong use.
    """
    sys.setrecursionlimit(RECURSION)
    try:
        with needs_extra("doctor"):
            from rich.console import Console

            from greenline.doctor import report
        examined = _examine(target)
    except (ConfigError, ModuleNotFoundError) as error:
        raise click.UsageError(str(error)) from error
    if form is None:
        report.print_text(examined, Console())
    else:
        click.echo(report.FORMATS[form](examined))
    context.exit(int(any(each.level == Level.ERROR for each in examined.findings)))


def _examine(target: str) -> "Examined":
    from greenline.doctor import imports
    from greenline.doctor.examine import examine
    from greenline.doctor.project import load

    is_folder = Path(target).is_dir()
    if not is_folder and not target.partition(":")[0].replace(".", "_").isidentifier():
        raise ConfigError(f"{target!r} is neither a folder nor a module:name, as gunicorn takes it")
    project = load(Path(target if is_folder else ".").resolve())
    with _progress() as on_file:
        examined = examine(project, _facts(project), on_file)
        if not is_folder:
            seen = imports.probe(project, target)
            examined.add(project, imports.findings(project, target, seen))
    return examined


def _facts(project: "Project") -> Facts:
    url = settings.DATABASE_URL.read() or ""
    is_pooled = settings.PGBOUNCER_POOL_SIZE.read() is not None or f":{PGBOUNCER_PORT}/" in url
    options = shlex.split(os.environ.get("GUNICORN_CMD_ARGS", ""))
    return Facts(
        is_preloaded="--preload" in options or project.preloads(),
        is_pooled_by_transaction=is_pooled,
    )


@contextmanager
def _progress() -> Iterator[Any]:
    """Yield a function to call for each file; what takes longer than a moment is shown."""
    from rich.console import Console
    from rich.status import Status

    begun_s, status = monotonic(), Status("", console=Console(stderr=True))

    def on_file(path: Path) -> None:
        if monotonic() - begun_s > PROGRESS_S:
            status.update(f"reading {path}")
            status.start()

    try:
        yield on_file
    finally:
        status.stop()

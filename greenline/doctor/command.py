"""Define the command ``greenline doctor``."""

import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from greenline import settings
from greenline.deploy.findings import Level
from greenline.doctor.codes import NO_RUN, PRELOADED
from greenline.doctor.findings import Facts, Finding
from greenline.errors import ConfigError
from greenline.lazy import needs_extra

if TYPE_CHECKING:
    from greenline.doctor.examine import Examined
    from greenline.doctor.project import Project
    from greenline.doctor.trial import Trial

FILE = click.Path(exists=True, dir_okay=False)
PROGRESS_S = 2.0
REDIS_WITH_TIMEOUT = 8  # its socket_timeout is 5 s by default
# In a URL, or in libpq's form: by the name of the host, the port or Prisma's option.
PGBOUNCER = re.compile(
    r"@[^/?]*pgbouncer | //(?![^/?]*@)[^/?]*pgbouncer | :6432(?=[/?,]|$) | [?&]pgbouncer=true"
    r"| \bhost=\S*pgbouncer | \bport=6432\b",
    re.VERBOSE | re.IGNORECASE,
)
RECURSION = 10_000  # a chain of a thousand + signs is nested that deeply


@click.command("doctor")
@click.argument("target", default=".")
@click.option("--package", "packages", metavar="NAME", multiple=True, help="Read the code of this "
              "library as well; may be repeated.")  # fmt: skip
@click.option("--run", "tests", metavar="COMMAND", help="Run the tests, as they are and patched.")
@click.option("--serve", is_flag=True, help="Serve TARGET on a worker until Ctrl-C.")
@click.option("--replay", metavar="LOG", type=FILE, help="Ask for what an access log has, on sync, "
              "on gthread and on ours.")  # fmt: skip
@click.option("--bind", default="127.0.0.1:8000", show_default=True, help="Where --serve listens.")
@click.option("--seconds", type=click.FloatRange(1), default=10, show_default=True,
              help="How long --replay asks each.")  # fmt: skip
@click.option("--clients", type=click.IntRange(1), default=20, show_default=True,
              help="How many ask at once.")  # fmt: skip
@click.option(
    "--host", metavar="NAME", help="The Host that --replay names; by default the address."
)
@click.option("--json", "forms", flag_value="json", multiple=True, help="Print JSON.")
@click.option("--sarif", "forms", flag_value="sarif", multiple=True,
              help="Print SARIF 2.1.0, for code scanning.")  # fmt: skip
@click.option("--github", "forms", flag_value="github", multiple=True,
              help="Print GitHub's annotations.")  # fmt: skip
@click.pass_context
def doctor(
    context: click.Context,
    /,
    target: str,
    packages: tuple[str, ...],
    forms: tuple[str, ...],
    tests: str | None,
    **served: Any,
) -> None:
    """
    Report what in an application goes wrong on a green worker.

    TARGET is what gunicorn is given, such as shop.wsgi:app: its code in the current folder is read,
    it is imported once, in a process of its own, and the checks of check-deploy run. A folder (the
    default is the current one) or a file is read and not imported. With --run, --serve or --replay
    the application runs as well, and a verdict is given. Exits with 0 when there is no error, 1
    when there is one, 2 for wrong use.
    """
    sys.setrecursionlimit(RECURSION)
    # As Ctrl-C: what the doctor has started ends with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with needs_extra("doctor"):
            from rich.console import Console

            from greenline.doctor import report
        if len(forms) > 1:
            raise ConfigError("there is one of --json, --sarif and --github")
        _check(target, tests, **served)
        examined = _examine(target, packages, partial(_trial, target, tests, **served))
    except (ConfigError, ModuleNotFoundError) as error:
        raise click.UsageError(str(error)) from error
    if forms:
        click.echo(report.FORMATS[forms[0]](examined))
    else:
        report.print_text(examined, Console())
    context.exit(int(any(each.level == Level.ERROR for each in examined.findings)))


def _check(target: str, tests: str | None, *, serve: bool, replay: str | None, **_: Any) -> None:
    if (tests is not None) + serve + (replay is not None) > 1:
        raise ConfigError("there is one of --run, --serve and --replay")
    if tests is not None:
        try:
            words = shlex.split(tests)
        except ValueError as error:
            raise ConfigError(f"--run: {tests!r}: {error}") from error
        if not words:
            raise ConfigError('--run needs a command, such as "pytest -x"')
    if (serve or replay is not None) and Path(target).exists():
        raise ConfigError(f"{target!r} is a path: a server needs a module:name")


def _trial(
    target: str,
    tests: str | None,
    folder: Path,
    *,
    serve: bool,
    replay: str | None,
    bind: str,
    seconds: float,
    clients: int,
    host: str | None,
) -> "Trial | None":
    """Run the application in *folder* as the options say; None without one of them."""
    from greenline.doctor import trial

    if tests is not None:
        return trial.run(tests, folder)
    if serve:
        return trial.serve(target, folder, bind)
    if replay is not None:
        return trial.replay(Path(replay), target, folder, seconds, clients, host)
    return None


def _examine(
    target: str, packages: tuple[str, ...], run: "Callable[[Path], Trial | None]"
) -> "Examined":
    from greenline.doctor import deployment, environment, imports, verdict
    from greenline.doctor.examine import examine
    from greenline.doctor.project import load
    from greenline.doctor.serving import TrialError

    is_path = Path(target).exists()
    if not is_path and not target.partition(":")[0].replace(".", "_").isidentifier():
        raise ConfigError(f"{target!r} is neither a path nor a module:name, as gunicorn takes it")
    project = load(Path(target if is_path else ".").resolve(), packages)
    deployed = [] if is_path else list(deployment.findings(project))
    facts = _facts(project)
    if not is_path:
        seen = imports.probe(project, target)
        loaded = (project.shown(Path(each)) for each in seen.get("loaded", ()))
        target_file = project.shown(Path(seen.get("target", "")))
        facts = facts._replace(
            loaded=frozenset(loaded), target=target_file, blocking=imports.blocking(project, seen)
        )
    if any(each.code == PRELOADED for each in deployed):
        facts = facts._replace(is_preloaded=True)
    examined = examine(project, facts, _tracked)
    examined.anchor = _anchor(project, target, examined)
    examined.note = environment.note(project)
    if _preloads_by_option():
        what = "--preload in GUNICORN_CMD_ARGS"
        examined.add(project, [Finding(PRELOADED, "", 0, what)])
    if not is_path:
        examined.import_s = seen.get("seconds")
        examined.add(project, imports.findings(project, target, seen))
        known = [*examined.findings, *(each for each, _ in examined.ignored)]
        is_known = any(each.code == PRELOADED for each in known)  # it is written in the file
        examined.add(project, (each for each in deployed if not is_known or each.code != PRELOADED))
    try:
        tried = run(project.folder)
    except TrialError as error:
        examined.add(project, [Finding(NO_RUN, "", 0, str(error))])
        return examined
    if tried is None:
        examined.verdict = verdict.as_read(examined)
    else:
        examined.blocks = verdict.blocks(project, tried)
        examined.requests = [each.requests for each in tried.observed]
        examined.add(project, verdict.findings(project, tried, examined.blocks))
        examined.verdict = verdict.verdict(project, tried, examined.findings)
    return examined


def _anchor(project: "Project", target: str, examined: "Examined") -> str:
    """Return the target's file, or one that configures the application, or the first one read."""
    from greenline.doctor.project import PYPROJECT

    module = target.partition(":")[0].replace(".", "/")
    named = (f"{module}.py", f"{module}/__init__.py", project.configuration, PYPROJECT)
    paths = (*named, *examined.comments) if project.file is None else (project.file.name,)
    return next((each for each in paths if (project.folder / each).is_file()), PYPROJECT)


def _facts(project: "Project") -> Facts:
    url = settings.DATABASE_URL.read() or ""
    is_pooled = settings.PGBOUNCER_POOL_SIZE.read() is not None or leads_to_pgbouncer(url)
    return Facts(
        is_preloaded=_preloads_by_option() or project.preloads(),
        is_pooled_by_transaction=is_pooled,
        has_redis_timeout=_has_redis_timeout(),
    )


def leads_to_pgbouncer(url: str) -> bool:
    """Return whether a ``DATABASE_URL`` shows that a pgbouncer is in between."""
    return PGBOUNCER.search(url) is not None


def _preloads_by_option() -> bool:
    from greenline.doctor.project import gunicorn_options

    return bool(gunicorn_options().preload_app)


def _has_redis_timeout() -> bool:
    try:
        return int(metadata.version("redis").partition(".")[0]) >= REDIS_WITH_TIMEOUT
    except metadata.PackageNotFoundError:  # the newest one will be installed
        return True


def _tracked(files: list[Path]) -> Iterator[Path]:
    """Yield *files*; what takes longer than a moment has a progress bar, on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    reading, begun_s = bar.add_task("reading", total=len(files)), monotonic()
    try:
        for path in files:
            if monotonic() - begun_s > PROGRESS_S:
                bar.start()
            yield path
            bar.advance(reading)
    finally:
        bar.stop()

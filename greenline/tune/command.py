"""Define the command ``greenline tune``."""

import re
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from greenline import settings
from greenline.errors import ConfigError
from greenline.lazy import needs_extra
from greenline.tune.capacity_command import Finite

if TYPE_CHECKING:
    from greenline.tune.results import Objective, Result
    from greenline.tune.tuner import Tuner

OBJECTIVE = re.compile(r"p99=(?P<p99>[\d.]+)(?P<unit>ms|s),errors=(?P<errors>[\d.]+)%")
RESULT = click.Path(exists=True, dir_okay=False, path_type=Path)
WRITTEN = click.Path(dir_okay=False, writable=True, path_type=Path)
INTERRUPTED = 130
ENDS = (signal.SIGTERM, signal.SIGHUP)


@click.command("tune")
@click.argument("target", required=False)
@click.option("--load", "offered", metavar="WHAT", help="A path, a URL, a HAR file or an access "
              "log: what to offer.")  # fmt: skip
@click.option("--slo", default="p99=200ms,errors=0.1%", show_default=True,
              help="The service-level objective.")  # fmt: skip
@click.option("--total", "total_s", type=Finite(1), default=600, show_default=True,
              help="Seconds that all of it takes, about.")  # fmt: skip
@click.option("--url", help="Of a server that runs already; only its rate is measured.")
@click.option("--i-own-this-host", "is_owned", is_flag=True, help="It may be another machine.")
@click.option("--max-rate", type=Finite(1), default=10_000, show_default=True,
              help="Never offer more requests a second.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'",
              help="Of each request; may be repeated.")  # fmt: skip
@click.option("--header-file", type=RESULT, help="A file of headers, one a line.")
@click.option("--unsafe-methods", is_flag=True, help="Offer what a HAR file has beside GET and "
              "HEAD, too.")  # fmt: skip
@click.option("--json", "json_file", type=WRITTEN, help="Write the figures, for greenline "
              "capacity and --compare.")  # fmt: skip
@click.option("--report", type=WRITTEN, help="Write a page with pictures.")
@click.option("--write", "settings_file", type=WRITTEN, help="Write what is recommended as a "
              "gunicorn.conf.py.")  # fmt: skip
@click.option("--compare", nargs=2, type=RESULT, metavar="BEFORE AFTER",
              help="Measure nothing: write a --report of two results of --json.")  # fmt: skip
@click.pass_context
def tune(
    context: click.Context,
    /,
    target: str | None,
    offered: str | None,
    slo: str,
    total_s: float,
    url: str | None,
    is_owned: bool,
    max_rate: float,
    headers: Sequence[str],
    header_file: Path | None,
    unsafe_methods: bool,
    json_file: Path | None,
    report: Path | None,
    settings_file: Path | None,
    compare: tuple[Path, Path] | None,
) -> None:
    """
    Measure an application under load, and recommend its settings from the figures.

    TARGET is what gunicorn is given, such as shop.wsgi:app. It is started on this machine, with the
    settings of this shell and the gunicorn.conf.py of this folder, again and again with other
    numbers of workers, connections and requests in progress. Ctrl-C gives what is known so far.
    Exits with 0 when all was measured, 1 when something was not, 2 for a wrong option, and 130
    after Ctrl-C.
    """
    # As Ctrl-C: what was started ends with it. nohup ignores SIGHUP.
    for number in ENDS:
        if (before := signal.getsignal(number)) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
            context.call_on_close(partial(signal.signal, number, before))
    try:
        with needs_extra("tune"):
            # Brought by the extra; what the child and the report need is missed before the load.
            import aiohttp  # noqa: F401
            import jinja2  # noqa: F401
            import lmfit  # noqa: F401
            import matplotlib  # noqa: F401
            import prometheus_client  # noqa: F401
            import rich  # noqa: F401
    except ModuleNotFoundError as error:
        raise click.UsageError(str(error)) from error
    from greenline.tune import configuration, load, results

    written = [file for file in (json_file, report, settings_file) if file is not None]
    for file in written:
        if not file.parent.is_dir():
            raise click.UsageError(f"{file}: there is no folder {file.parent}")
        if written.count(file) > 1:
            raise click.UsageError(f"{file}: it is given for two files")
    if settings_file is not None and not configuration.may_write(settings_file):
        raise click.UsageError(f"--write {settings_file}: it is there, and not of greenline tune")
    if compare is not None:
        try:
            _compare(results.read(compare[0]), results.read(compare[1]), report)
        except ConfigError as error:
            raise click.ClickException(str(error)) from error
        return
    if (target is None) == (url is None):
        raise click.UsageError("give either what gunicorn is given, such as myapp:app, or --url")
    objective = _objective(slo)
    if offered is None:
        if not sys.stdin.isatty():
            raise click.UsageError("--load is missing: a path, a URL, a HAR file or an access log")
        offered = click.prompt("What to offer (a path, a HAR file or an access log)", default="/")
    try:
        settings.sizing()  # gunicorn's import fails with a traceback if WEB_CONCURRENCY is wrong
        from greenline.tune.run import Asked
        from greenline.tune.tuner import Tuner

        sent = load.read_headers(headers, None if header_file is None else str(header_file))
        mix = load.read(offered, unsafe=unsafe_methods, headers=sent)
        asked = Asked(target, Path.cwd(), url, is_owned, mix, sent, objective, total_s, max_rate)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    status = 0
    from greenline.tune import screen

    click.echo(f"This takes about {total_s:.0f} s: {mix.words}.", err=True)
    with screen.progress(total_s) as say:
        tuner = Tuner(asked, say)
        status = _run(tuner)
    result = tuner.result()
    if result.sweeps:
        screen.show(result)
        failed = _write(result, json_file, report, settings_file)
        status = status or failed
    elif status:
        click.echo("nothing is known so far: no file is written", err=True)
    context.exit(status)


def _run(tuner: "Tuner") -> int:
    """Measure; return the exit status, after a line that says why it is not 0."""
    from greenline.doctor.serving import TrialError
    from greenline.tune.measure import BrokenService, GeneratorError
    from greenline.tune.run import Stopped

    try:
        tuner.run()
    except (ConfigError, TrialError, GeneratorError, BrokenService, Stopped) as error:
        click.echo(f"Error: {error}", err=True)
        tuner.note_end(f"The run has ended early: {error}")
        return 1
    except KeyboardInterrupt:
        # A second one, as make sends it, would lose the report.
        for number in (signal.SIGINT, *ENDS):
            signal.signal(number, signal.SIG_IGN)
        click.echo("interrupted", err=True)
        tuner.note_end("The run was interrupted: what follows its last figures was not measured.")
        return INTERRUPTED
    return 0 if tuner.is_complete else 1


def _write(
    result: "Result", json_file: Path | None, report: Path | None, settings_file: Path | None
) -> int:
    """Write the files that were asked for; return 1 if one could not be written, else 0."""
    from greenline.tune import configuration, results
    from greenline.tune import report as reports

    if settings_file is not None and not result.recommendations:
        click.echo(f"{settings_file} is not written: nothing is recommended", err=True)
        settings_file = None
    status = 0
    for file, write in (
        (json_file, results.write),
        (report, reports.write),
        (settings_file, configuration.write),
    ):
        if file is None:
            continue
        try:
            write(result, file)
            click.echo(f"{file} is written", err=True)
        except (OSError, ValueError) as error:  # the measurement is worth more than a file
            click.echo(f"Error: {file}: {getattr(error, 'strerror', None) or error}", err=True)
            status = 1
    return status


def _compare(before: "Result", after: "Result", report: Path | None) -> None:
    from greenline.tune import report as reports

    if report is None:
        raise click.UsageError("--compare needs --report FILE, the page to write")
    reports.compare(before, after, report)


def _objective(text: str) -> "Objective":
    from greenline.tune.results import Objective

    found = OBJECTIVE.fullmatch(text.replace(" ", ""))
    try:
        if found is None:
            raise ValueError
        p99_s = float(found["p99"]) / (1e3 if found["unit"] == "ms" else 1)
        errors = float(found["errors"]) / 100
        if not p99_s or errors > 1:
            raise ValueError
    except ValueError:
        raise click.UsageError(
            f"--slo {text}: not of the form p99=200ms,errors=0.1%: a p99 in ms or s, and then "
            "errors in %"
        ) from None
    return Objective(p99_s=p99_s, errors=errors)

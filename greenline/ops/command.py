"""Define the commands ``greenline top`` and ``greenline stacks``."""

import sys
from time import sleep

import click
import msgspec

from greenline import settings
from greenline.errors import ConfigError
from greenline.lazy import needs_extra
from greenline.ops import sources, stacks
from greenline.ops.watch import EVERY_S
from greenline.telemetry import shared_memory


@click.command()
@click.argument("target", required=False)
@click.option("--once", is_flag=True, help="Print it once, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a line each second.")
def top(target: str | None, once: bool, as_json: bool) -> None:
    """
    Show live what the workers do, and what limits them.

    TARGET is the URL of GREENLINE_OPS_BIND, such as http://127.0.0.1:9191, the path of its socket,
    or the process id of a worker or its arbiter; without it, the gunicorn of this host is shown.
    GREENLINE_OPS_TOKEN is sent if it is set.
    """
    try:
        state = sources.state_of(target, settings.OPS_TOKEN.read())
        if as_json:
            while True:
                click.echo(msgspec.json.encode(state()))
                if once:
                    return
                sleep(EVERY_S)
        try:
            with needs_extra("ops"):
                from greenline.ops import screen
        except ModuleNotFoundError as error:
            raise ConfigError(str(error)) from error
        if once or not sys.stdout.isatty():
            screen.print_once(state())
        else:
            screen.follow(state)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(0)


@click.command("stacks")
@click.argument("target", metavar="PID|all")
def show_stacks(target: str) -> None:
    """
    Show where each greenlet of a worker is, and what it waits for, without stopping it.

    PID is the process id of a worker, or of its arbiter for all of its workers; 'all' stands for
    all workers of this host that this user may look at. Where the hub of a worker is blocked, its
    requests and the code that blocks it are shown.
    """
    try:
        if target == "all":
            found = shared_memory.all_of_host()
            if not found:
                raise ConfigError("no gunicorn with greenline.worker.GreenWorker of this user runs")
            texts = [text for memory in found for text in stacks.of_workers(memory, None)]
        elif target.isdecimal():
            pid = int(target)
            memory = sources.memory_of(pid)
            one = pid if pid in sources.pids_of(memory) else None
            texts = stacks.of_workers(memory, one)
        else:
            raise ConfigError(f"{target!r} is no process id, and not 'all'")
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    click.echo("\n\n".join(texts) or "no worker runs")

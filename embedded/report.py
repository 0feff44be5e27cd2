"""The banner of ``make serve``: printed last, when the service is ready."""

import os
import shlex
import shutil

from embedded import cluster
from embedded.account import Account
from greenline.telemetry.console import coloured

BOLD = "1"
NEW_BOOK = (
    '{"title": "The Dispossessed", "authors": ["Ursula K. Le Guin"], '
    '"genres": ["utopia"], "published": "1974-05-01"}'
)


def banner(
    port: int,
    notes: list[str],
    key: str | None,
    *,
    metrics: str,
    has_mongo: bool,
    in_colour: bool,
) -> str:
    """
    Return the lines to print: the servers, the key, the page to open, and commands to try.

    :param port: where the service listens, int.
    :param notes: lines about the databases.
    :param key: the API key, str; None if none is required.
    :param metrics: where the metrics are, ``host:port`` or the path of a unix socket, str.
    :param has_mongo: whether the service has what is stored in MongoDB, bool.
    :param in_colour: whether the terminal shows colours, bool.
    """

    def bold(text: str) -> str:
        return coloured(text, BOLD) if in_colour else text

    base = f"http://127.0.0.1:{port}"
    curl = "curl" if key is None else 'curl -H "Authorization: Bearer $KEY"'
    lines = [*notes, ""]
    lines += [] if key is None else [bold(f"KEY={key}"), ""]
    lines += [f"Greenline is ready: open {bold(f'{base}/')}", ""]
    lines += [f"Or, in another shell{'' if key is None else ', after the line KEY=...'}:", ""]
    lines += [f"{curl} '{base}/books?limit=3'"]
    lines += [f"{curl} '{base}/states?limit=3'"] * has_mongo
    lines += [f"{curl} {base}/books -H 'Content-Type: application/json' -d '{NEW_BOOK}'"]
    lines += ["", "What it does, live:", ""]
    lines += [] if "/" in metrics else [f"open http://{metrics}/"]
    lines += [".venv/bin/greenline top"]
    where = metrics if "/" in metrics else f"http://{metrics}/metrics"
    lines += ["", f"What it does, for Prometheus: {where}"]
    lines += ["", "Ctrl-C stops it, the data stays"]
    return "\n".join(["", *(f"  {line}".rstrip() for line in lines), ""])


def psql(url: str) -> str:
    """Return the command that opens *url* in psql; the embedded Postgres brings one along."""
    ourselves = Account(os.geteuid(), os.getegid())
    program = shutil.which("psql") or cluster.binaries(ourselves) / "psql"
    return f"{'psql' if shutil.which('psql') else shlex.quote(str(program))} '{url}'"

"""The banner of ``make serve``: printed last, when the service is ready."""

import os
import shlex
import shutil
import time

from embedded import cluster
from embedded.account import Account
from greenline.telemetry.console import coloured

BOLD = "1"
NEW_BOOK = (
    '{"title": "The Dispossessed", "authors": ["Ursula K. Le Guin"], '
    '"genres": ["utopia"], "published": "1974-05-01"}'
)
# A new task at every start: a second state for the same pair would be a conflict.
NEW_STATE = f'{{"task_id": {int(time.time())}, "agent_id": 1, "data": {{"step": 1}}}}'


def banner(
    port: int, notes: list[str], key: str | None, *, has_mongo: bool, in_colour: bool
) -> str:
    """
    Return the lines to print: the servers, commands to try, and last the page to open.

    :param port: where the service listens, int.
    :param notes: lines about the databases.
    :param key: the API key, str; None if none is required.
    :param has_mongo: whether the service has what is stored in MongoDB, bool.
    :param in_colour: whether the terminal shows colours, bool.
    """

    def bold(text: str) -> str:
        return coloured(text, BOLD) if in_colour else text

    base = f"http://127.0.0.1:{port}"
    curl = "curl" if key is None else 'curl -H "Authorization: Bearer $KEY"'
    lines = [*notes, "", "Try:", ""]
    lines += [] if key is None else [bold(f"KEY={key}")]
    lines += [f"{curl} '{base}/books?limit=3'", _post(curl, f"{base}/books", NEW_BOOK)]
    lines += [_post(curl, f"{base}/states", NEW_STATE)] * has_mongo
    lines += [f"curl {base}/readyz"]
    lines += ["", f"Greenline is ready: open {bold(f'{base}/')}"]
    lines += ["Ctrl-C stops it, the data stays"]
    return "\n".join(["", *(f"  {line}".rstrip() for line in lines), ""])


def psql(url: str) -> str:
    """Return the command that opens *url* in psql; the embedded Postgres brings one along."""
    ourselves = Account(os.geteuid(), os.getegid())
    program = shutil.which("psql") or cluster.binaries(ourselves) / "psql"
    return f"{'psql' if shutil.which('psql') else shlex.quote(str(program))} '{url}'"


def _post(curl: str, url: str, body: str) -> str:
    return f"{curl} {url} -H 'Content-Type: application/json' -d '{body}'"

"""What ``make serve`` tells when all is up."""

import os
import shlex
import shutil
import time

from embedded import cluster
from embedded.account import Account

NEW_BOOK = (
    '{"title": "The Dispossessed", "authors": ["Ursula K. Le Guin"], '
    '"genres": ["utopia"], "published": "1974-05-01"}'
)
# A task of its own at every start: a second state for the same pair would be a conflict.
NEW_STATE = f'{{"task_id": {int(time.time())}, "agent_id": 1, "data": {{"step": 1}}}}'


def started(port: int, told: list[str], key: str | None, has_mongo: bool) -> str:
    """Return the lines to print: where it listens, what it uses, and what to try with *key*."""
    base = f"http://127.0.0.1:{port}"
    curl = "curl" if key is None else f"curl -H 'Authorization: Bearer {key}'"
    lines = [f"Greenline listens on {base}; Ctrl-C stops it, the data stays", "", *told]
    lines += ["", f"Try, or read and try all of it at {base}/docs:", ""]
    lines += [f"  {curl} '{base}/books?limit=3'", _post(curl, f"{base}/books", NEW_BOOK)]
    lines += [_post(curl, f"{base}/states", NEW_STATE)] * has_mongo
    lines += [f"  curl {base}/readyz"]
    return "\n".join(["", *(f"  {line}".rstrip() for line in lines), ""])


def psql(url: str) -> str:
    """Return the command that opens *url* in psql; the embedded Postgres brings one along."""
    ourselves = Account(os.geteuid(), os.getegid())
    program = shutil.which("psql") or cluster.binaries(ourselves) / "psql"
    return f"{'psql' if shutil.which('psql') else shlex.quote(str(program))} '{url}'"


def _post(curl: str, url: str, body: str) -> str:
    return f"  {curl} {url} -H 'Content-Type: application/json' -d '{body}'"

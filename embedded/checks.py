"""
Ask, before anything starts, whether what the person gave us can be used.

1. What is wrong becomes one line that names the variable, and what to do.
2. No line shows a password. libpq and pymongo quote the parts of a URL that they cannot read, and
   one with an unescaped ``/`` or ``@`` in its password is read wrongly: such texts are not shown.
"""

import os
import re
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psycopg2
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError

from greenline.errors import ConfigError

TIMEOUT_S = 5
METRICS_PORT = 9191
ESCAPE = "in a password, write @ as %40, / as %2F, : as %3A, % as %25"


def folder(path: Path) -> None:
    """Make *path*, and prove that it is a folder that can be written to."""
    advice = "set GREENLINE_DATA to a folder that you can write to"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"GREENLINE_DATA: {path} is not a folder; {advice}") from None
    except OSError as error:
        what = error.strerror or "it cannot be used"
        raise ConfigError(f"GREENLINE_DATA: {path}: {what}; {advice}") from error


def port() -> int:
    """Return ``PORT``, which nobody listens on."""
    text = os.environ.get("PORT", "").strip() or "8000"
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= 65_535:
        raise ConfigError(f"PORT: {text!r} is not a whole number from 1 to 65535")
    with socket.socket() as probe:
        # As gunicorn does: an old connection that is still closing does not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(text)))
            probe.listen()
        except PermissionError:
            raise ConfigError(f"PORT: {text} needs root; set PORT to one above 1023") from None
        except OSError as error:
            raise ConfigError(
                f"PORT: {text} is taken by another process; stop that one, "
                f"or set PORT to another, as in PORT={int(text) % 65_000 + 1} make serve"
            ) from error
    return int(text)


def metrics_port() -> tuple[int, socket.socket]:
    """
    Return ``METRICS_PORT``, or another one if a process listens there or another run has it.

    Also returns a socket that keeps other runs from it, which have seconds until they listen.
    """
    for number in (METRICS_PORT, 0):
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", number))
            probe.listen()
            found = int(probe.getsockname()[1])
            if sys.platform == "linux":
                # A name without a file, which one process may have, until it ends.
                claim.bind(f"\0greenline-metrics-{found}")
            return found, claim
        claim.close()
    raise ConfigError("GREENLINE_OPS_BIND: no port is free")


def postgres(url: str) -> str:
    """Return the version of the Postgres at *url*."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise ConfigError(f"DATABASE_URL: must begin with postgresql://; {ESCAPE}")
    try:
        conn = psycopg2.connect(url, connect_timeout=TIMEOUT_S)
    except psycopg2.Error as error:
        raise ConfigError(f"DATABASE_URL: {_postgres_reason(str(error))}") from error
    version = str(conn.get_parameter_status("server_version"))
    conn.close()
    return version.split()[0]


def mongodb(uri: str) -> str:
    """Return the version of the MongoDB at *uri*."""
    if not uri.startswith(("mongodb://", "mongodb+srv://")):
        raise ConfigError(f"MONGODB_URI: must begin with mongodb://; {ESCAPE}")
    limit_ms = TIMEOUT_S * 1000
    try:
        with MongoClient[dict[str, object]](
            uri,
            serverSelectionTimeoutMS=limit_ms,
            connectTimeoutMS=limit_ms,
            socketTimeoutMS=limit_ms,
        ) as client:
            client.admin.command("ping")
            return str(client.server_info()["version"])
    except (PyMongoError, ValueError) as error:
        raise ConfigError(f"MONGODB_URI: {_mongodb_reason(error)}") from error


def _postgres_reason(text: str) -> str:
    """Keep what libpq says after the address; a URL that it misread is not quoted."""
    if "could not translate host name" in text and "@" not in text:
        return "the name of its host is not known; correct the URL"
    # One line for each address that was tried: what a server said counts more than silence.
    tried = re.findall(r"connection to server (?:at|on socket) (.+?) failed: (.+)", text)
    tried.sort(key=lambda line: "FATAL" not in line[1])
    if not tried or "@" in tried[0][0]:
        return f"not one that libpq can read; it is postgresql://user:password@host/name; {ESCAPE}"
    address, what = tried[0]
    what = what.replace("FATAL:", "").strip()
    return f"cannot connect to {address}: {what}; correct the URL, or that server, or unset it"


def _mongodb_reason(error: Exception) -> str:
    if isinstance(error, OperationFailure):
        what = str((error.details or {}).get("errmsg") or f"error {error.code}").splitlines()[0]
        return f"the server refuses: {what}; correct the URI, or that server, or unset it"
    if isinstance(error, ServerSelectionTimeoutError) and "@" not in str(error):
        what = re.split(r" \(configured|, Timeout:|,", str(error))[0]
        return f"cannot connect to {what}; correct the URI, or that server, or unset it"
    return f"not one that pymongo can read; it is mongodb://user:password@host/name; {ESCAPE}"

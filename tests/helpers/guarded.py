"""An embedded MongoDB that speaks TLS alone, and answers its users alone."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pymongo import MongoClient

from embedded.mongo import Mongo
from tests.helpers.certificate import certify, needs_openssl

PASSWORD = "s3cret/@"
MECHANISMS = ["SCRAM-SHA-1", "SCRAM-SHA-256"]  # SecantusDB has the second one alone by default
ROLES = {
    "writer": ["readWrite"],
    "reader": ["read"],
    "nobody": [],
    "newcomer": [],
    "admin": ["userAdmin"],
}

marks = [
    needs_openssl,
    pytest.mark.skipif(shutil.which("mongod") is not None, reason="the options are SecantusDB's"),
]


class Guarded(Mongo):
    """A server of the users of ``ROLES`` in the database ``d``, on ``localhost`` and no address."""

    @property
    def authority(self) -> Path:
        """Whom a client has to trust."""
        return self.folder / "certificate.pem"

    def uri(self, user: str, *options: str, password: str = PASSWORD, at: str = "") -> str:
        """Return the URI of ``d`` for *user*, "" for none; *at* another host and port."""
        who = f"{user}:{quote(password, safe='')}@" if user else ""
        where = at or f"localhost:{self.port}"
        return f"mongodb://{who}{where}/d?{'&'.join(('directConnection=true', *options))}"

    @property
    def tls(self) -> tuple[str, str]:
        """The options of a URI for TLS with it."""
        return "tls=true", f"tlsCAFile={quote(str(self.authority))}"

    def _command(self) -> list[str | Path]:
        files = ["--tls-cert-file", self.authority, "--tls-key-file", self.folder / "key.pem"]
        return [*super()._command(), "--auth", *files]

    def _answers(self) -> bool:
        return True


@contextmanager
def guarded(folder: Path, *, standalone: bool = False) -> Iterator[Guarded]:
    """Run one on *folder*; until a server knows its users, no other admits it."""
    with Mongo(folder, standalone=standalone) as server, MongoClient[Any](server.url) as client:
        for name, roles in ROLES.items():
            client.d.command("createUser", name, pwd=PASSWORD, roles=roles, mechanisms=MECHANISMS)
        client.d.c.insert_one({"_id": 1})
    certify(folder)
    with Guarded(folder, standalone=standalone) as server:
        yield server

"""Two collections of a test's own, and the commands on them."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bson.raw_bson import RawBSONDocument
from click.testing import CliRunner, Result
from pymongo import MongoClient
from pymongo.collection import Collection

from app.commands.documents import documents
from app.documents.checkpoint import COLLECTION
from app.documents.endpoint import opened, parse
from app.documents.ids import RAW
from tests.helpers.proxy import Proxy
from tests.helpers.support import CHECKOUT, environ


@dataclass
class Pair:
    """A source and a target in one database, which is at *uri*."""

    uri: str
    client: "MongoClient[dict[str, Any]]"
    folder: Path

    @property
    def database(self) -> Any:
        return self.client.get_default_database()

    @property
    def source(self) -> "Collection[dict[str, Any]]":
        found: Collection[dict[str, Any]] = self.database["source"]
        return found

    @property
    def target(self) -> "Collection[dict[str, Any]]":
        found: Collection[dict[str, Any]] = self.database["target"]
        return found

    @property
    def places(self) -> tuple[str, str]:
        return f"{self.uri}.source", f"{self.uri}.target"

    @property
    def failed(self) -> Path:
        return self.folder / "failed.ndjson"

    def checkpoint(self) -> Any:
        """Return the copy's checkpoint; None when there is none."""
        return self.database[COLLECTION].find_one({"_id": "target"})

    def call(self, command: str, *options: str, more: Mapping[str, str] | None = None) -> Result:
        """Run a command in this process."""
        given = [command, *self.places, *self._file(command), *options]
        return call(*given, **(more or {}))

    @contextmanager
    def running(self, *options: str) -> Iterator["subprocess.Popen[str]"]:
        """Run ``copy`` in a process of its own."""
        given = [*self.places, *self._file("copy"), *options]
        command = [sys.executable, "-m", "flask", "documents", "copy", *given]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, cwd=CHECKOUT, env=environ({}), text=True, stdout=pipe, stderr=pipe
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def _file(self, command: str) -> list[str]:
        return ["--failed", str(self.failed)] if command == "copy" else []


def call(*arguments: str, **more: str) -> Result:
    """Run ``flask documents`` in this process, with *more* in its environment."""
    nothing = {"DATABASE_URL": None, "MONGODB_URI": None}
    return CliRunner().invoke(documents, arguments, env={**nothing, **more})


def contents(collection: "Collection[Any]") -> list[bytes]:
    """Return the raw documents in the order of their ids."""
    raw: Collection[RawBSONDocument] = collection.with_options(RAW)
    return [bytes(found.raw) for found in raw.find(sort={"_id": 1})]


def numbers(pair: Pair, count: int) -> None:
    """Fill the source with *count* small documents."""
    pair.source.insert_many([{"_id": n, "n": n, "x": "y" * 20} for n in range(count)])


def side(uri: str) -> Any:
    return opened(parse(uri, lambda: (uri, {})))


def behind(proxy: Proxy, place: str) -> str:
    """Return *place* through the proxy."""
    host, _, rest = place.removeprefix("mongodb://").partition("/")
    assert host
    return f"mongodb://127.0.0.1:{proxy.port}/{rest}?directConnection=true"


def set_fail_point(pair: Pair, mode: Any, data: dict[str, Any]) -> None:
    """Let commands fail: a command of MongoDB's own tests."""
    pair.client.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)


def error_of(done: Any) -> str:
    """Return the one line of an error, whose exit status is 1."""
    assert done.exit_code == 1, done.output
    # On a machine that is busy, it is one of those that take five seconds.
    others = re.compile(r"to go on: |going on after |\w+ [\d,]+( of about [\d,]+)? \w+, [\d,]+/s")
    (line,) = [line for line in done.stderr.splitlines() if not others.match(line)]
    assert line.startswith("Error: ")
    return str(line.removeprefix("Error: "))

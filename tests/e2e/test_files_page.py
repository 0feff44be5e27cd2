"""What docs/documents.md tells to type for files works as it stands there."""

import os
import re
import subprocess
from pathlib import Path

import bson
from pymongo import MongoClient

from app.commands.documents import documents
from tests.helpers.stored import A, archive, block
from tests.helpers.support import BIN, CHECKOUT, Databases, environ, run

PAGE = (CHECKOUT / "docs" / "documents.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Files\n")[2]
LINES = [
    line
    for text in re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
    for line in text.splitlines()
]
PRODUCTS, BOOKS = 200, 1_000  # of the sample


def test_each_line_of_the_page_works(empty_database: str, empty_mongo: str, tmp_path: Path) -> None:
    """In their order, on the sample, in an empty folder with a dump of mongodump's form."""
    settings = Databases(empty_database, empty_mongo).environ
    run(["flask", "db", "upgrade", "sample"], settings)
    (tmp_path / "dump/shop").mkdir(parents=True)
    (tmp_path / "dump/shop/products.bson").write_bytes(b"".join(map(bson.encode, A)))
    users = block("users", [{"_id": "u"}]) + block("users", [], end=True)
    (tmp_path / "shop.archive").write_bytes(archive("users") + users)
    path = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    code = {"FLASK_APP": str(CHECKOUT / "app/commands/__init__.py")}
    with MongoClient[dict[str, object]](empty_mongo) as client:
        client.drop_database("shop")
        for line in LINES:
            done = subprocess.run(
                ["sh", "-ec", line],
                cwd=tmp_path,
                env=environ({**settings, **path, **code}),
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, (line, done.stderr)
            assert re.search(r"(documents?|books) (imported|exported)", done.stderr), line
        shop = client["shop"]
        found = {name: shop[name].count_documents({}) for name in shop.list_collection_names()}
        client.drop_database("shop")
    assert found == {"products": PRODUCTS, "copied": PRODUCTS, "restored": len(A) + 1}
    again = run(["flask", "books", "export", "-"], settings)
    assert len(again.stdout.splitlines()) == 2 * BOOKS


def test_each_option_is_on_the_page_and_each_on_the_page_is_one() -> None:
    """The page is what the commands take."""
    known = {
        option
        for name in ("export", "import")
        for parameter in documents.commands[name].params
        for option in parameter.opts
        if option.startswith("--")
    }
    known |= {"--archive"}  # mongodump's
    assert set(re.findall(r"--[a-z][a-z-]+", SECTION)) == known

"""What docs/documents.md tells to type works as it stands there."""

import re
import shlex
from typing import Any

from pymongo import MongoClient

from app.commands.documents import documents
from tests.helpers.support import CHECKOUT, run

PAGE = (CHECKOUT / "docs" / "documents.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in PAGE.split("```")[1::2]
    for line in block.strip().splitlines()
    if re.match(r"flask documents (populate|copy|compare) ", line)
]


def test_each_command_runs_as_typed(empty_mongo: str) -> None:
    """In their order: later ones build on earlier ones."""
    archive = f"{empty_mongo.rpartition('/')[2]}b"
    environ = {"MONGODB_URI": empty_mongo}
    said = []
    try:
        for line in COMMANDS:
            # The other database has a name of this test's own.
            done = run(shlex.split(line.replace("archive.", f"{archive}.")), environ)
            said.append(done.stdout)
    finally:
        with MongoClient[Any](empty_mongo) as client:
            client.drop_database(archive)
    assert [text.count("equal: 1,000 documents") for text in said] == [0, 1, 1, 1, 1]


def test_each_option_is_on_the_page_and_each_on_the_page_is_one() -> None:
    """The page is what the commands take."""
    known = {
        option
        for name in ("populate", "copy", "compare")
        for parameter in documents.commands[name].params
        for option in parameter.opts
        if option.startswith("--")
    }
    part = PAGE.partition("## Populate, copy, compare")[2].partition("\n## ")[0]
    assert set(re.findall(r"--[a-z][a-z-]+", part)) == known

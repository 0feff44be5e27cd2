"""What a check says: how bad it is, where, what, why it matters, and what to do."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from greenline.deploy.facts import Facts


class Level(StrEnum):
    """An error costs answers or writes, or tells lies; a warning may; a remark is to be known."""

    ERROR = "error"
    WARNING = "warning"
    REMARK = "remark"


class Finding(NamedTuple):
    """One thing that is out of order; *code* is the check's own and stays."""

    level: Level
    code: str
    where: str
    what: str
    why: str
    fix: str


Check = Callable[[Facts], Iterator[Finding]]

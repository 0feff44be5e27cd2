"""Define the result of a check."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from greenline.deploy.facts import Facts


class Level(StrEnum):
    """
    The severity of a finding.

    An error loses answers or writes, or lets clients forge data; a warning may do so under some
    conditions; a remark is information.
    """

    ERROR = "error"
    WARNING = "warning"
    REMARK = "remark"


def counted(count: int, name: str) -> str:
    """Return a number and what it counts, such as "1 error" or "2 errors"."""
    return f"{count} {name}{'s' * (count != 1)}"


class Action(StrEnum):
    """
    The way in which an edit changes its target.

    ``replace``: the text replaces the directive; ``before``: it is inserted before the directive;
    ``inside``: it is inserted at the end of the block; ``assign``: it is an assignment in
    gunicorn.conf.py; ``export``: it sets a variable of the environment.
    """

    REPLACE = "replace"
    BEFORE = "before"
    INSIDE = "inside"
    ASSIGN = "assign"
    EXPORT = "export"


@dataclass(frozen=True)
class Edit:
    """
    Describe a change that corrects a problem.

    :param action: what becomes of the target.
    :param where: ``file:line`` of the target in nginx's files; else the file, or empty, str.
    :param target: the directive with its first arguments, or the name that is set, str.
    :param text: the corrected lines, str.
    """

    action: Action
    where: str
    target: str
    text: str


class Finding(NamedTuple):
    """
    Describe one problem of a deployment.

    :param level: its severity.
    :param code: the stable name of the problem, str.
    :param where: ``file:line`` or a variable, str.
    :param what: the problem, str.
    :param why: its consequences, str.
    :param fix: the suggested change, str.
    :param edits: the same change for a program, default none: it needs a decision, or a value that
        no file has.
    """

    level: Level
    code: str
    where: str
    what: str
    why: str
    fix: str
    edits: tuple[Edit, ...] = ()


Check = Callable[[Facts], Iterator[Finding]]

"""Define the result of a check."""

from collections.abc import Callable, Iterator
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


class Finding(NamedTuple):
    """
    Describe one problem of a deployment.

    :param level: its severity.
    :param code: the stable name of the problem, str.
    :param where: ``file:line`` or a variable, str.
    :param what: the problem, str.
    :param why: its consequences, str.
    :param fix: the suggested change, str.
    """

    level: Level
    code: str
    where: str
    what: str
    why: str
    fix: str


Check = Callable[[Facts], Iterator[Finding]]

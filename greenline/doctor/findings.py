"""Define a finding of the doctor, and the codes that it may have."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from greenline.deploy.findings import Level

PAGES = "docs/doctor"


class Code(NamedTuple):
    """
    Describe one kind of finding.

    :param code: its stable name, str.
    :param level: its severity.
    :param title: what is found, str.
    :param why: what it does on a green worker, one sentence, str.
    :param fix: what to do, one sentence, str.
    """

    code: str
    level: Level
    title: str
    why: str
    fix: str

    @property
    def page(self) -> str:
        """The page of the documentation that explains it."""
        return f"{PAGES}/{self.code}.md"


class Finding(NamedTuple):
    """
    Describe one problem of an application.

    :param code: its kind.
    :param path: the file, empty if it is in none, str.
    :param line: the line, from 1 on; 0 if it is in none, int.
    :param what: what was found there, str.
    :param stack: the file, the line and the function of the calls that led there, the outermost
        first. Default: none, since only what has run has a stack.
    """

    code: Code
    path: str
    line: int
    what: str
    stack: tuple[tuple[str, int, str], ...] = ()

    @property
    def level(self) -> Level:
        """Its severity."""
        return self.code.level


@dataclass(frozen=True)
class Block:
    """
    Describe what has blocked the hub at one line, by one library.

    :param path: the file of the application, empty if it is in none, str.
    :param line: the line, from 1 on; 0 if it is in none, int.
    :param library: the package that has blocked, str.
    :param waits: whether it waits below Python, bool; otherwise it computes.
    :param count: how often, int.
    :param total_s: how long in all, float seconds.
    :param longest_s: how long at most, float seconds.
    :param stack: the calls that led there, as those of a finding.
    """

    path: str
    line: int
    library: str
    waits: bool
    count: int
    total_s: float
    longest_s: float
    stack: tuple[tuple[str, int, str], ...]


class Facts(NamedTuple):
    """
    What the rules know besides the file that they look at.

    :param is_preloaded: gunicorn imports the application before it forks, and so before the
        worker is patched, bool.
    :param is_pooled_by_transaction: the connections of Postgres go through a pgbouncer, bool.
    :param has_socket_timeout: the project calls ``socket.setdefaulttimeout``, bool.
    :param has_redis_timeout: redis-py has a timeout by default, as from its version 8 on, bool.
    :param has_mail_timeout: Django's mails have a timeout, or do not go to a server, bool.
    :param has_atomic_requests: Django's settings make each view a transaction, bool.
    :param loaded: the files that the import of the application loads, as findings show them, str;
        empty: it was not imported.
    :param target: the file of these that has the application, str; empty: it was not imported.
    :param blocking: the drivers and event loops that the import loads and that the worker warns
        of, by name. Default: none.
    """

    is_preloaded: bool = False
    is_pooled_by_transaction: bool = False
    has_socket_timeout: bool = False
    has_redis_timeout: bool = False
    has_mail_timeout: bool = True
    has_atomic_requests: bool = False
    loaded: frozenset[str] = frozenset()
    target: str = ""
    blocking: Mapping[str, Finding] = {}


Found = Iterator[tuple[Code, ast.AST, str]]

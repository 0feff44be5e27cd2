"""Except clauses that keep an interrupted request running."""

import ast
import re
from collections.abc import Iterator

from greenline.doctor.codes import SWALLOWS
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Module, Scope, last, walked
from greenline.doctor.rules.transactions import SERVICES

EVERYTHING = (None, "BaseException", "builtins.BaseException")  # None: a bare except
# What ends the process anyway, keeps the exception for later, or raises it at the end of a block.
LETS_GO = ("sys.exit", "os._exit", "os.abort", "exit", "quit", "sys.exc_info")
RAISES = {"abort", "safe_reraise", "save_and_reraise_exception"}
# What reads memory, or a file of the disk, which blocks and is not interrupted.
LOCAL = ("io.", "zipfile.", "tarfile.", "open()")
# Calls that show the exception, or ask for its kind.
SHOWS = {"print", "str", "repr", "format", "type", "isinstance"}
LOGGERS = re.compile(r"traceback|_?log(?:ger|ging)?", re.IGNORECASE)
# Each method of redis, except for those that send nothing.
REDIS = re.compile(
    r"redis\.(?:(?:client\.)?(?:Strict)?Redis(?:\.from_url)?|from_url)\(\)\."
    r"(?!close|lock|pipeline|pubsub|register_script)\w+"
)
# First or last words in the names of what waits: for another service, a database, a lock or a
# queue. A request is interrupted while it waits, and not while it computes.
WAITS = {
    "acquire", "aggregate", "call", "commit", "communicate", "connect", "download", "execute",
    "executemany", "fetch", "fetchall", "fetchone", "invoke", "login", "many", "one", "ping",
    "publish", "pull", "push", "query", "read", "receive", "recv", "request", "retrieve",
    "rollback", "send", "sendall", "sendmail", "sleep", "upload", "urlopen", "wait",
}  # fmt: skip
# Methods of Django's managers, which are also used under other names than ``objects``.
QUERIES = {
    "bulk_create", "bulk_update", "get_or_create", "in_bulk",
    "refresh_from_db", "select_for_update", "update_or_create",
}  # fmt: skip
# Behind another word these are nouns, and that word says what is done: make_request() waits, and
# language_from_request() does not.
NOUNS = {"call", "download", "login", "query", "read", "request", "upload"}
DOES = {"do", "execute", "make", "perform", "run", "send", "start", "submit", "try"}


def swallowing(module: Module, facts: Facts) -> Found:
    """Find clauses that end all exceptions, around calls that may wait, and go on."""
    for node, site in module.tries:
        # A coroutine is not interrupted: the greenlet that runs its loop is.
        if not isinstance(site.scope.function, ast.FunctionDef) or site.is_command:
            continue
        if not _waits(module, node.body, site.scope):
            continue
        for clause in node.handlers:
            kinds = clause.type.elts if isinstance(clause.type, ast.Tuple) else [clause.type]
            names = {each and module.name_of(each, site.scope) for each in kinds}
            if names.isdisjoint(EVERYTHING):
                continue
            if not _goes_away(module, clause, site.scope):
                what = "except:" if clause.type is None else "except BaseException:"
                yield SWALLOWS, clause, what
        for each in walked(node.finalbody):
            if isinstance(each, ast.Return):
                yield SWALLOWS, each, "return in finally:"


def suppressing(module: Module, facts: Facts) -> Found:
    """Find contextlib.suppress(BaseException) around calls that may wait."""
    for call in module.calls:
        block, scope = module.blocks.get(call.node), call.site.scope
        if call.name != "contextlib.suppress" or block is None or scope.function is None:
            continue
        names = {module.name_of(each, scope) for each in call.node.args}
        if names.isdisjoint(EVERYTHING) or call.site.is_command:
            continue
        if _waits(module, block.body, scope):
            yield SWALLOWS, call.node, "suppress(BaseException)"


def _waits(module: Module, body: list[ast.stmt], scope: Scope) -> bool:
    calls = (each for each in walked(body) if isinstance(each, ast.Call))
    return any(_may_wait(module, each, scope) for each in calls)


def _may_wait(module: Module, call: ast.Call, scope: Scope) -> bool:
    function = module.name_of(call.func, scope)
    if SERVICES.fullmatch(function) or REDIS.fullmatch(function):
        return True
    if function.startswith(LOCAL):
        return False
    name = last(call.func)
    if name in QUERIES or "objects" in (name, last(getattr(call.func, "value", call.func))):
        return True  # a query of Django's
    words = name.lower().strip("_").split("_")
    is_noun = words[-1] in NOUNS and words[0] not in DOES
    return words[0] in WAITS or (words[-1] in WAITS and not is_noun)


def _goes_away(module: Module, clause: ast.ExceptHandler, scope: Scope) -> bool:
    """Return whether it raises, ends the process, or keeps the exception for later."""
    shown = {name for each in walked(clause.body) for name in _shown(each)}
    for each in walked(clause.body):
        if isinstance(each, ast.Raise):
            return True
        if isinstance(each, ast.Call):
            name = module.name_of(each.func, scope)
            words = name.rpartition(".")[2], last(each.func)  # of an alias, or of self.abort()
            if name in LETS_GO or not RAISES.isdisjoint(words):
                return True
        if isinstance(each, ast.Name) and each.id == clause.name and each not in shown:
            return True
    return False


def _shown(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what *node* has in it and does not keep: it shows it, or takes a part of it."""
    match node:
        case ast.Attribute(value=value, attr=attr) if attr != "with_traceback":
            yield value
        case ast.JoinedStr() | ast.BinOp():
            yield from ast.walk(node)
        case ast.Call(func=ast.Attribute(value=logger)) if LOGGERS.fullmatch(last(logger)):
            yield from ast.walk(node)
        case ast.Call(func=function) if last(function) in SHOWS:
            yield from ast.walk(node)

"""Except clauses that keep an interrupted request running."""

import ast

from greenline.doctor.codes import SWALLOWS
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Module, Scope, walked

EVERYTHING = ("BaseException", "builtins.BaseException")
# What ends the process anyway, keeps the exception for later, or raises it at the end of a block.
LETS_GO = ("sys.exit", "os._exit", "os.abort", "exit", "quit", "sys.exc_info")
RAISES = ("safe_reraise", "save_and_reraise_exception")


def swallowing(module: Module, facts: Facts) -> Found:
    """Find clauses that catch all exceptions, around calls, and go on."""
    for node, site in module.tries:
        if site.scope.function is None or site.is_script:
            continue
        if not any(isinstance(each, ast.Call) for each in walked(node.body)):
            continue
        for clause in node.handlers:
            kind = "" if clause.type is None else module.name_of(clause.type, site.scope)
            if clause.type is not None and kind not in EVERYTHING:
                continue
            if not _goes_away(module, clause, site.scope):
                what = "except:" if clause.type is None else "except BaseException:"
                yield SWALLOWS, clause, what


def _goes_away(module: Module, clause: ast.ExceptHandler, scope: Scope) -> bool:
    """Return whether it raises, ends the process, or keeps the exception for later."""
    for each in walked(clause.body):
        if isinstance(each, ast.Raise):
            return True
        if isinstance(each, ast.Call):
            name = module.name_of(each.func, scope)
            if name in LETS_GO or name.rpartition(".")[2] in RAISES:
                return True
        if clause.name and isinstance(each, ast.Name) and each.id == clause.name:
            return True
    return False

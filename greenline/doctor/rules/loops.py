"""Event loops, and loops that wait for nothing."""

import ast
from collections.abc import Iterable, Iterator
from itertools import chain

from greenline.doctor.codes import CURRENT_LOOP, SHARED_LOOP, SPINS
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Module, Scope, walked

NEW_LOOPS = (
    "asyncio.new_event_loop()",
    "asyncio.get_event_loop()",
    "asyncio.events.new_event_loop()",
    "uvloop.new_event_loop()",
)
RUN = ("run_until_complete", "run_forever")
CLOCKS = ("time.time", "time.monotonic", "time.perf_counter", "datetime.datetime.now")
# Methods of queues, events, threads and locks that only look.
LOOKS = ("empty", "full", "is_set", "isSet", "is_alive", "locked")
ENDS = (ast.Return, ast.Break, ast.Raise)
# What changes a condition, or may wait: also an iterator and the beginning of a with block.
CHANGES = (
    ast.Yield, ast.YieldFrom, ast.Await, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Delete,
    ast.For, ast.While, ast.With, ast.Try, ast.Match,
)  # fmt: skip


def shared_loops(module: Module, facts: Facts) -> Found:
    """Find loops that are made at import and run in a function."""
    for call in module.calls:
        base, _, method = call.name.rpartition(".")
        if base not in NEW_LOOPS or method not in RUN or call.site.scope.function is None:
            continue
        if call.site.is_command or not isinstance(call.node.func, ast.Attribute):
            continue
        if _is_made_at_import(call.node.func.value, call.site.scope):
            yield SHARED_LOOP, call.node, f"{method}() of a loop that is made at import"


def _is_made_at_import(node: ast.expr, scope: Scope) -> bool:
    """Return whether the name *node* has its value from a module or the body of a class."""
    match node:
        case ast.Name(id=name):
            found = scope.find(name)
            return found is not None and found[0].function is None
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if scope.owner:
            return scope.owner.has(name)  # of the body of the class
    return False


def current_loops(module: Module, facts: Facts) -> Found:
    """Find asyncio.get_event_loop() in functions that use it and are not coroutines."""
    # There is none: the code knows.
    expected = {
        each
        for node, site in module.tries
        for clause in node.handlers
        if clause.type is not None and module.name_of(clause.type, site.scope) == "RuntimeError"
        for each in walked([*node.body, *clause.body])
    }
    # Where it is kept, as by a client of asyncio, a coroutine may have called.
    using = {
        call.site.scope.function
        for call in module.calls
        if call.name.startswith("asyncio.get_event_loop().")
    }
    for call in module.calls:
        if call.node in expected or call.site.is_command:
            continue
        function = call.site.scope.function
        is_used = isinstance(function, ast.FunctionDef) and function in using
        if is_used and call.name == "asyncio.get_event_loop":
            yield CURRENT_LOOP, call.node, "asyncio.get_event_loop()"


def spinning(module: Module, facts: Facts) -> Found:
    """Find while loops that only look at a condition."""
    for loop, site in module.whiles:
        if site.scope.function is None or isinstance(site.scope.function, ast.AsyncFunctionDef):
            continue
        ends = list(_ends(loop.body, []))
        conditions = [each for _, each in ends]
        if [] in conditions:
            continue
        once = {each for end, _ in ends for statement in end for each in ast.walk(statement)}
        nodes = [each for each in walked([*loop.body, ast.Expr(loop.test)]) if each not in once]
        waits = any(
            module.name_of(each.func, site.scope) not in CLOCKS
            and getattr(each.func, "attr", "") not in LOOKS
            for each in nodes
            if isinstance(each, ast.Call)
        )
        counted = _names(each.target for each in nodes if isinstance(each, ast.AugAssign))
        asked = _names([loop.test, *chain.from_iterable(conditions)])
        if waits or counted & asked or any(isinstance(each, CHANGES) for each in nodes):
            continue
        yield SPINS, loop, "while without a wait"


def _names(expressions: Iterable[ast.expr]) -> set[str]:
    nodes = chain.from_iterable(map(ast.walk, expressions))
    return {each.id for each in nodes if isinstance(each, ast.Name)}


def _ends(
    body: list[ast.stmt], conditions: list[ast.expr]
) -> Iterator[tuple[list[ast.stmt], list[ast.expr]]]:
    """Yield the suites that end a loop, which run once, each with its conditions."""
    for node in body:
        if isinstance(node, ENDS):
            yield body, conditions
        elif isinstance(node, ast.If):
            for suite in (node.body, node.orelse):
                yield from _ends(suite, [*conditions, node.test])

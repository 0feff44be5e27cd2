"""
Find the functions that no request is known to run, in files that may serve requests.

A request may run each function of a file that imports a web framework, what has a decorator or is
in a class with a base, and each function that is mentioned, by its name alone, in one of these or
in code that the import runs. An import of a function and ``__all__`` do not mention it.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from greenline.doctor.module import Function, Module, Scope, defaults, last

# Decorators under which a function is called by its name, as without them.
PLAIN = {"cache", "classmethod", "contextmanager", "lru_cache", "staticmethod", "wraps"}
# In a string, as getattr() and the routes of frameworks have it.
NAME = re.compile(r"(?:[\w.]+[.:])?([A-Za-z_]\w*)")


def mark(modules: Iterable[Module], serving: Collection[Module]) -> None:
    """
    Mark the functions that no request is known to run.

    :param modules: the files that requests may run something of.
    :param serving: those of these that import a web framework, or have the application.
    """
    functions: defaultdict[str, list[Function]] = defaultdict(list)
    running: list[Function] = []
    mentioned: set[str] = set()
    of_module: list[tuple[Scope, list[Function]]] = []
    paths = {each.path for each in serving}
    for module in modules:
        mentioned.update(_mentioned(module.tree.body))
        own = [node for node in module.scopes if isinstance(node, Function)]
        of_module.append((module.scopes[module.tree], own))
        for each in own:
            functions[each.name].append(each)
            if module.path in paths or _is_called_from_outside(each, module.scopes[each]):
                running.append(each)
    running += chain.from_iterable(functions[name] for name in mentioned)
    known: set[ast.AST] = set()
    while running:
        function = running.pop()
        if function not in known:
            known.add(function)
            new = set(_mentioned(function.body)) - mentioned
            mentioned |= new
            running += chain.from_iterable(functions[name] for name in new)
    for scope, own in of_module:
        scope.unreached.update(each for each in own if each not in known)


def _is_called_from_outside(function: Function, scope: Scope) -> bool:
    """Return whether something else than a mention of its name may call a function."""
    owner = scope.parent.node if scope.parent else None
    return (
        any(last(getattr(each, "func", each)) not in PLAIN for each in function.decorator_list)
        or (isinstance(owner, ast.ClassDef) and bool(owner.bases))
        or function.name.startswith("__")
    )


def _mentioned(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names in *body*, but not those in the functions inside it."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and (found := NAME.fullmatch(node.value)):
                yield found[1]
        elif isinstance(node, Function):
            todo += [*node.decorator_list, *defaults(node.args)]
            continue
        elif isinstance(node, ast.Assign) and last(node.targets[0]) == "__all__":
            continue
        todo.extend(ast.iter_child_nodes(node))

"""
Find the functions that no request is known to run, in files that may serve requests.

A request may run each function of the file that has the application, what has a decorator, a method
of a class with a base that is not the project's, or of a name by which frameworks call it, and each
function that is mentioned, by its name alone, in one of these or in code that the import runs. The
mention of a class is one of its special methods. An import of a function and ``__all__`` do not
mention it, nor does a function that threads run.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from greenline.doctor.module import Function, Module, defaults, last

# Decorators under which a function is called by its name, as without them.
PLAIN = {"cache", "classmethod", "contextmanager", "lru_cache", "staticmethod", "wraps"}
# By these names Falcon, CherryPy, web.py and Pyramid call a function.
CALLED = re.compile(r"on_\w+|GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|index|default|includeme|main")
PLAIN_BASES = {"object", "ABC", "Generic", "Protocol"}
# In a string, as getattr() and the routes of frameworks have it.
NAME = re.compile(r"(?:[\w.]+[.:])?([A-Za-z_]\w*)")


def mark(modules: Sequence[Module], target: str = "") -> None:
    """
    Mark the functions that no request is known to run.

    :param modules: the files that requests may run something of.
    :param target: the path of the one that has the application. Default: not known.
    """
    functions: defaultdict[str, list[Function]] = defaultdict(list)
    running: list[Function] = []
    mentioned: set[str] = set()
    open_classes = _open_classes(modules)
    for module in modules:
        mentioned.update(_mentioned(module.tree.body))
        for each, owner in _functions(module):
            is_special = each.name.startswith("__")
            functions[owner.name if owner and is_special else each.name].append(each)
            if module.path == target or _is_called_from_outside(each, owner, open_classes):
                running.append(each)
    running += chain.from_iterable(functions[name] for name in mentioned)
    known = {each for module in modules for each in module.scopes[module.tree].background}
    while running:
        function = running.pop()
        if function not in known:
            known.add(function)
            new = set(_mentioned(function.body)) - mentioned
            mentioned |= new
            running += chain.from_iterable(functions[name] for name in new)
    for module in modules:
        unreached = (each for each, _ in _functions(module) if each not in known)
        module.scopes[module.tree].unreached.update(unreached)


def _functions(module: Module) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Yield the functions of *module*, a method with its class."""
    for node, scope in module.scopes.items():
        if isinstance(node, Function):
            owner = scope.parent.node if scope.parent else None
            yield node, owner if isinstance(owner, ast.ClassDef) else None


def _open_classes(modules: Iterable[Module]) -> set[str]:
    """Return the names of the classes that have a base from outside, which may call them."""
    classes = [
        (node.name, {_name_of(each) for each in node.bases})
        for module in modules
        for node in module.scopes
        if isinstance(node, ast.ClassDef)
    ]
    closed = {name for name, _ in classes} | PLAIN_BASES
    while opened := {name for name, bases in classes if name in closed and not bases <= closed}:
        closed -= opened
    return {name for name, _ in classes} - closed


def _name_of(base: ast.expr) -> str:
    return last(base.value if isinstance(base, ast.Subscript) else base)  # Generic[T]


def _is_called_from_outside(
    function: Function, owner: ast.ClassDef | None, open_classes: set[str]
) -> bool:
    """Return whether something else than a mention of its name may call a function."""
    return (
        any(last(getattr(each, "func", each)) not in PLAIN for each in function.decorator_list)
        or (owner is not None and owner.name in open_classes)
        or CALLED.fullmatch(function.name) is not None
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

"""
Find the functions that no request is known to run, in files that may serve requests.

A request may run each function of the file that has the application, what has a decorator, a method
of a class with a base that is not the project's, or of a name by which frameworks call it, and each
function that is mentioned, by its name alone, in one of these or in code that the import runs: a
method behind a dot or in a string, and its class anywhere, unless that has a base or a decorator.
The mention of a class is one of its special methods. An import and ``__all__`` mention nothing, and
a function that threads run is none.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from greenline.doctor.module import Function, Module, defaults, last

# Decorators under which a function is called by its name, as without them.
PLAIN = {"cache", "classmethod", "contextmanager", "lru_cache", "staticmethod", "wraps"}
# By these names Falcon, CherryPy, web.py and Pyramid call a function.
CALLED = re.compile(r"on_\w+|GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|index|default|includeme|main")
PLAIN_BASES = {"object", "ABC", "Generic", "Protocol"}
# In a string, as getattr() and the routes of frameworks have it.
NAME = re.compile(r"(?:[\w.]+[.:])?([A-Za-z_]\w*)")


class _Mentions(NamedTuple):
    """
    The names in code that requests may run.

    :param plain: those that stand alone.
    :param dotted: those behind a dot, in a string, or in the body of a class, str.
    """

    plain: set[str]
    dotted: set[str]

    def add(self, body: list[ast.stmt]) -> None:
        """Add the names in *body*, but not those in the functions inside it."""
        for name, is_dotted in _mentioned(body):
            (self.dotted if is_dotted else self.plain).add(name)

    def have(self, function: Function, owner: ast.ClassDef | None) -> bool:
        """Return whether a function is mentioned, or a method of *owner* with its class."""
        if owner is None:
            return function.name in self.plain or function.name in self.dotted
        is_known = (
            owner.name in self.plain
            or owner.name in self.dotted
            or bool(owner.decorator_list)
            # Code may know the base, and get this class from a registry.
            or not {_name_of(each) for each in owner.bases} <= PLAIN_BASES
        )
        return is_known and (function.name.startswith("__") or function.name in self.dotted)


def mark(modules: Sequence[Module], target: str = "") -> None:
    """
    Mark the functions that no request is known to run.

    :param modules: the files that requests may run something of.
    :param target: the path of the one that has the application. Default: not known.
    """
    functions = [(module, *each) for module in modules for each in _functions(module)]
    open_classes = _open_classes(modules)
    known = {each for module in modules for each in module.scopes[module.tree].background}
    mentions = _Mentions(set(), set())
    for module in modules:
        mentions.add(module.tree.body)
    running = {
        function
        for module, function, owner in functions
        if module.path == target or _is_called_from_outside(function, owner, open_classes)
        or mentions.have(function, owner)
    }  # fmt: skip
    while running := running - known:
        known |= running
        for each in running:
            mentions.add(each.body)
        running = {function for _, function, owner in functions if mentions.have(function, owner)}
    for module, function, _ in functions:
        if function not in known:
            module.scopes[module.tree].unreached.add(function)


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


def _mentioned(body: list[ast.stmt]) -> Iterator[tuple[str, bool]]:
    """Yield the names in *body* but not in its functions, and whether each may be a method's."""
    todo: list[tuple[ast.AST, bool]] = [(each, False) for each in body]
    while todo:
        node, is_in_class = todo.pop()
        if isinstance(node, ast.Name):
            yield node.id, is_in_class
        elif isinstance(node, ast.Attribute):
            yield node.attr, True
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and (found := NAME.fullmatch(node.value)):
                yield found[1], True
        elif isinstance(node, Function):
            arguments = node.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            annotations = filter(None, (each.annotation for each in every))
            headers = (*node.decorator_list, *defaults(arguments), *annotations)
            todo += ((each, is_in_class) for each in headers)
            continue
        elif isinstance(node, ast.ClassDef):
            is_in_class = True
        elif isinstance(node, ast.Assign) and last(node.targets[0]) == "__all__":
            continue
        todo += ((each, is_in_class) for each in ast.iter_child_nodes(node))

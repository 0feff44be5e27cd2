"""
What is known of one Python file: what it calls, under which names, and in which surroundings.

:mod:`greenline.doctor.reader` reads it; nothing is imported. A call has the dotted name of what it
calls, as far as assignments and imports of the same file show it: after
``from requests import Session as S`` and ``s = S()``, the call ``s.get(url)`` has the name
``requests.Session().get``.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

Function = ast.FunctionDef | ast.AsyncFunctionDef
# A function under one of these decorators runs in a process of its own.
COMMANDS = ("command", "group", "task", "job", "actor", "on_starting")


class Scope:
    """
    Where names are looked up: a module, a class or a function.

    :param parent: the scope around it, None for a module.
    :param node: what makes the scope.
    """

    def __init__(self, parent: "Scope | None", node: ast.AST) -> None:
        self.parent = parent
        self.node = node
        self.top: Scope = self if parent is None else parent.top
        self.is_job = False  # of a module that no request runs
        self.is_unreached = False  # of a module that no file of requests imports
        self.background: set[ast.AST] = set()  # of a module: the functions that threads run
        self.unreached: set[ast.AST] = set()  # of a module: that no request is known to run
        self.dotted: dict[ast.expr, str] = {}  # of the expressions that were looked up here
        self._names: dict[str, ast.expr | str | None] = {}

    def bind(self, name: str, value: ast.expr | str | None) -> None:
        """
        Bind *name*; a second value, unless it is the same, makes it unknown.

        :param value: an expression, a dotted name, or None for an unknown value. The expression
            ``None`` stands for no value: a library that is missing, or an object not made yet.
        """
        known = self._names.get(name, value)
        if _is_none(value):
            value = known
        elif _is_none(known):
            known = value
        is_same = known is value or (known == value and isinstance(value, str))
        self._names[name] = value if is_same else None

    def find(self, name: str) -> "tuple[Scope, ast.expr | str | None] | None":
        """Return the value that *name* has here, and the scope that has it."""
        scope: Scope | None = self
        while scope is not None:
            # The names of a class are not seen in its methods.
            is_seen = scope is self or not isinstance(scope.node, ast.ClassDef)
            if is_seen and name in scope._names:
                return scope, scope._names[name]
            scope = scope.parent
        return None

    def has(self, name: str) -> bool:
        """Return whether *name* is bound here, and not around it."""
        return name in self._names

    def functions(self) -> Iterator[Function]:
        """Yield the functions around it, the innermost first."""
        scope: Scope | None = self
        while scope is not None:
            if isinstance(scope.node, Function):
                yield scope.node
            scope = scope.parent

    @property
    def function(self) -> Function | None:
        """The innermost function around it, None at import."""
        return next(self.functions(), None)

    @property
    def owner(self) -> "Scope | None":
        """The class whose method it is in."""
        scope: Scope | None = self
        while scope is not None:
            if isinstance(scope.node, ast.ClassDef):
                return scope
            scope = scope.parent
        return None


@dataclass(frozen=True)
class Site:
    """
    Where something stands.

    :param scope: the names.
    :param blocks: the expressions of the ``with`` blocks around it in the same function, the
        outermost first, and the names of the function's decorators.
    :param is_script: it is under ``if __name__ == "__main__"`` or a switch for debugging, which a
        server does not run.
    """

    scope: Scope
    blocks: tuple[str, ...] = ()
    is_script: bool = False

    @property
    def is_command(self) -> bool:
        """Whether no request runs it: a script, a command, a thread, or a task of a queue."""
        names = (each.removesuffix("()").rpartition(".")[2] for each in self.blocks)
        return (
            self.is_script
            or self.scope.top.is_job
            or not self.scope.top.background.isdisjoint(self.scope.functions())
            or any(name in COMMANDS or name.endswith(("_task", "_command")) for name in names)
        )

    @property
    def is_of_requests(self) -> bool:
        """Whether a request may run it, or the import of a file that requests import."""
        top = self.scope.top
        is_unreached = top.is_unreached or not top.unreached.isdisjoint(self.scope.functions())
        return not (self.is_command or is_unreached)

    @property
    def is_at_import(self) -> bool:
        """Whether it runs when the module is imported."""
        is_later = self.scope.function is not None or isinstance(self.scope.node, ast.Lambda)
        return not is_later and not self.is_script


@dataclass(frozen=True)
class Call:
    """
    A call.

    :param node: the expression.
    :param name: the dotted name of what is called, empty if it is unknown.
    :param site: where it stands.
    """

    node: ast.Call
    name: str
    site: Site

    def arguments(self) -> set[str]:
        """Return the dotted names of its arguments, as far as they are known."""
        given = (*self.node.args, *(each.value for each in self.node.keywords))
        return {_name_of(each, self.site.scope) for each in given}

    def has(self, *keywords: str) -> bool:
        """Return whether one of *keywords* is given and not None, or may be in ``**``."""
        return any(
            each.arg is None
            or (each.arg in keywords and getattr(each.value, "value", each) is not None)
            for each in self.node.keywords
        )

    def given(self, keyword: str, position: int | None = None) -> ast.expr | None:
        """Return an argument, None if it is not given."""
        for each in self.node.keywords:
            if each.arg == keyword:
                return each.value
        if position is not None and len(self.node.args) > position:
            return self.node.args[position]
        return None

    @property
    def is_open_ended(self) -> bool:
        """Whether there is ``*arguments``: how many are given is unknown."""
        return any(isinstance(each, ast.Starred) for each in self.node.args)


@dataclass
class Module:
    """
    A file that was read.

    :param path: its path, as findings show it.
    :param tree: its syntax tree.
    :param lines: how many lines it has.
    :param ignored: the codes that a comment ignores, by line.
    :param calls: its calls, in the order in which a function makes them.
    """

    path: str
    tree: ast.Module
    lines: int
    ignored: dict[int, set[str]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    tries: list[tuple[ast.Try | ast.TryStar, Site]] = field(default_factory=list)
    whiles: list[tuple[ast.While, Site]] = field(default_factory=list)
    subscripts: list[tuple[ast.Subscript, Site]] = field(default_factory=list)
    compares: list[tuple[ast.Compare, Site]] = field(default_factory=list)
    imports: list[tuple[ast.stmt, str, Site]] = field(default_factory=list)  # dotted names
    strings: list[tuple[ast.expr, str, Site]] = field(default_factory=list)
    dicts: list[tuple[ast.Dict, Site]] = field(default_factory=list)
    relative_imports: list[str] = field(default_factory=list)  # from the project's folder on
    scopes: dict[ast.AST, Scope] = field(default_factory=dict)

    @cached_property
    def imported(self) -> frozenset[str]:
        """The packages that it imports."""
        return frozenset(name.partition(".")[0] for _, name, _ in self.imports)

    @cached_property
    def blocks(self) -> dict[ast.expr, ast.With]:
        """Its ``with`` blocks, by each of their expressions."""
        found = (each for each in ast.walk(self.tree) if isinstance(each, ast.With))
        return {item.context_expr: each for each in found for item in each.items}

    def function_at(self, line: int) -> Function | None:
        """Return the innermost function around *line*, None at import."""
        around = (
            each
            for each in self.scopes
            if isinstance(each, Function) and each.lineno <= line <= (each.end_lineno or 0)
        )
        return max(around, key=lambda each: each.lineno, default=None)

    def subclasses(self, base: str) -> Iterator[ast.ClassDef]:
        """Yield its classes that are made of *base*, a dotted name."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef):
                bases = (self.name_of(each, self.scopes[self.tree]) for each in node.bases)
                if base in bases:
                    yield node

    def callers(self, site: Site) -> list[Site]:
        """Return where the file calls the function that *site* is in, by its name."""
        function = site.scope.function
        if function not in self.tree.body:  # a method, or none
            return []
        return [each.site for each in self.calls if each.name == f".{function.name}"]

    def name_of(self, node: ast.expr, scope: Scope) -> str:
        """Return the dotted name of an expression, empty if it is unknown."""
        return _name_of(node, scope)


def _is_none(value: ast.expr | str | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _name_of(node: ast.expr | str | None, scope: Scope) -> str:
    if isinstance(node, str) or node is None:
        return node or ""
    if node not in scope.dotted:
        scope.dotted[node] = ""  # for x = x.y, which is looked up again before it is known
        scope.dotted[node] = _built(node, scope)
    return scope.dotted[node]


def _built(node: ast.expr, scope: Scope) -> str:
    match node:
        case ast.Name(id=name):
            found = scope.find(name)
            if found is None:
                return name
            return _name_of(found[1], found[0])
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if scope.owner:
            owner = scope.owner
            found = owner.find(f"self.{name}") or (owner.find(name) if owner.has(name) else None)
            return _name_of(found[1], found[0]) if found else ""
        case ast.Attribute(value=value, attr=name):
            base = _name_of(value, scope)
            return f"{base}.{name}" if base else ""
        case ast.Call(func=function, args=arguments):
            base = _name_of(function, scope)
            if base == "contextlib.closing" and arguments:
                return _name_of(arguments[0], scope)
            return f"{base}()" if base else ""
        case ast.NamedExpr(value=value) | ast.Await(value=value):
            return _name_of(value, scope)
        case ast.BoolOp(values=[*_, value]):  # given or default()
            return _name_of(value, scope)
    return ""


def defaults(arguments: ast.arguments) -> list[ast.expr]:
    """Return the expressions of the default values of *arguments*."""
    return [*arguments.defaults, *filter(None, arguments.kw_defaults)]


def last(node: ast.AST) -> str:
    """Return the last name of a dotted one."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def walked(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of *nodes*, but not those of functions and classes inside them."""
    todo: list[ast.AST] = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (*Function.__args__, ast.ClassDef, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(node))

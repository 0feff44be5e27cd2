"""
Read one Python file: what it calls, under which names, and in which surroundings.

Nothing is imported. A call has the dotted name of what it calls, as far as assignments and imports
of the same file show it: after ``from requests import Session as S`` and ``s = S()``, the call
``s.get(url)`` has the name ``requests.Session().get``.
"""

import ast
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path, PurePosixPath

Function = ast.FunctionDef | ast.AsyncFunctionDef
# A function under one of these decorators runs in a process of its own.
COMMANDS = ("command", "group", "task", "job", "actor", "on_starting")
IGNORE = re.compile(r"#\s*greenline:\s*ignore\[([A-Z0-9, ]+)\]")


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

        :param value: an expression, a dotted name, or None for an unknown value.
        """
        known = self._names.get(name, value)
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
    def is_at_import(self) -> bool:
        """Whether it runs when the module is imported."""
        return self.scope.function is None and not self.is_script


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


def parse(source: bytes) -> ast.Module:
    """
    Return the syntax tree of a file.

    :raises SyntaxError: it is no Python, has an unknown encoding, or is nested too deeply.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of the application's code
            return ast.parse(source)
    # Null bytes, in older versions of Python; too deep for the parser; too deep for the tree.
    except (ValueError, MemoryError, RecursionError) as error:
        raise SyntaxError(str(error) or "nested too deeply") from error


def read(path: Path, shown: str) -> Module:
    """
    Read a file.

    :param path: where it is.
    :param shown: the path that findings show.
    :raises SyntaxError: :func:`parse` has raised it.
    :raises RecursionError: it is nested too deeply to be walked.
    :raises OSError: it cannot be read.
    """
    source = path.read_bytes()
    module = Module(shown, parse(source), source.count(b"\n"), _ignored(source))
    _Reader(module).read()
    return module


def _ignored(source: bytes) -> dict[int, set[str]]:
    if b"greenline:" not in source:
        return {}
    found: dict[int, set[str]] = {}
    for token in tokenize.tokenize(BytesIO(source).readline):
        if token.type == tokenize.COMMENT and (match := IGNORE.search(token.string)):
            codes = {each.strip() for each in match[1].split(",")}
            found.setdefault(token.start[0], set()).update(codes)
    return found


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


class _Reader:
    """Walks a tree twice: it binds all names first, because a function may use a later one."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._globals: dict[ast.AST, set[str]] = {}

    def read(self) -> None:
        module = self._module
        top = module.scopes[module.tree] = Scope(None, module.tree)
        for node in module.tree.body:
            self._bind(node, top)
        self._visit_all(module.tree.body, Site(top))
        top.background.update(self._background())

    def _background(self) -> Iterator[ast.AST]:
        """Yield the functions that only threads run: nothing else in the file calls them."""
        given = {last(each) for call in self._module.calls if (each := _target(call)) is not None}
        given -= {last(call.node.func) for call in self._module.calls}
        for node, scope in self._module.scopes.items():
            if not isinstance(node, ast.FunctionDef):
                continue
            owner = scope.parent.node if scope.parent else None
            bases = owner.bases if isinstance(owner, ast.ClassDef) else ()
            is_run = node.name == "run" and any(last(each) == "Thread" for each in bases)
            if is_run or node.name in given:
                yield node

    # ---- Names

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.Import(names=names):
                for each in names:
                    if each.asname:
                        scope.bind(each.asname, each.name)
                    else:
                        first = each.name.partition(".")[0]
                        scope.bind(first, first)
            case ast.ImportFrom(module=package, names=names, level=level):
                base = "." * level + (package or "")
                for each in names:
                    dot = "" if base.endswith(".") or not base else "."
                    scope.bind(each.asname or each.name, f"{base}{dot}{each.name}")
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind_target(target, value, scope)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._bind_target(target, value, scope)
            case ast.AugAssign(target=target):
                self._bind_target(target, None, scope)
            case ast.NamedExpr(target=target, value=value):
                self._bind_target(target, value, scope)
            case ast.For(target=target) | ast.AsyncFor(target=target):
                self._bind_target(target, None, scope)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if item.optional_vars is not None:
                        self._bind_target(item.optional_vars, item.context_expr, scope)
            case ast.ExceptHandler(name=str(name)):
                scope.bind(name, None)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._bind_function(node, scope)
                return
            case ast.ClassDef(name=name):
                scope.bind(name, f".{name}")
                scope = self._module.scopes[node] = Scope(scope, node)
        for child in ast.iter_child_nodes(node):
            self._bind(child, scope)

    def _bind_function(self, node: Function | ast.Lambda, scope: Scope) -> None:
        if not isinstance(node, ast.Lambda):
            scope.bind(node.name, f".{node.name}")
        for each in [*getattr(node, "decorator_list", ()), *_defaults(node.args)]:
            self._bind(each, scope)
        inner = self._module.scopes[node] = Scope(scope, node)
        if isinstance(node, Function):
            declared = (each for each in walked(node.body) if isinstance(each, ast.Global))
            self._globals[node] = {name for each in declared for name in each.names}
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for each in [*every, arguments.vararg, arguments.kwarg]:
            if each is not None:
                inner.bind(each.arg, None)
        for child in node.body if isinstance(node.body, list) else [node.body]:
            self._bind(child, inner)

    def _bind_target(self, target: ast.expr, value: ast.expr | None, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                is_global = name in self._globals.get(scope.node, ())
                (self._module.scopes[self._module.tree] if is_global else scope).bind(name, value)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if scope.owner:
                scope.owner.bind(f"self.{name}", value)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for each in elements:
                    self._bind_target(each, None, scope)
            case ast.Starred(value=inner):
                self._bind_target(inner, None, scope)

    # ---- What is done

    def _visit_all(self, nodes: list[ast.stmt], site: Site) -> None:
        for node in nodes:
            self._visit(node, site)

    def _visit(self, node: ast.AST, site: Site) -> None:
        module = self._module
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._visit_function(node, site)
                return
            case ast.Lambda(body=body):
                self._visit(body, Site(module.scopes[node]))
                return
            case ast.ClassDef(decorator_list=decorators, bases=bases, body=body):
                for each in [*decorators, *bases]:
                    self._visit(each, site)
                inner = Site(module.scopes[node], (), site.is_script)
                self._visit_all(body, inner)
                return
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                blocks = list(site.blocks)
                for item in items:
                    here = Site(site.scope, tuple(blocks), site.is_script)
                    self._visit(item.context_expr, here)
                    blocks.append(module.name_of(item.context_expr, site.scope))
                self._visit_all(body, Site(site.scope, tuple(blocks), site.is_script))
                return
            case ast.If(test=test, body=body, orelse=otherwise) if _asks_for_main(
                test
            ) or _asks_for_debugging(test):
                self._visit_all(body, Site(site.scope, site.blocks, is_script=True))
                self._visit_all(otherwise, site)
                return
            case ast.If(test=test, orelse=otherwise) if _is_for_types(test):
                self._visit_all(otherwise, site)
                return
            case ast.Constant(value=str(text)):
                module.strings.append((node, text, site))
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), _, *_]):
                module.strings.append((node, f"{text}...", site))
            case ast.Dict():
                module.dicts.append((node, site))
            case ast.Subscript():
                module.subscripts.append((node, site))
            case ast.Compare():
                module.compares.append((node, site))
            case ast.Try() | ast.TryStar():
                module.tries.append((node, site))
            case ast.While():
                module.whiles.append((node, site))
            case ast.Import(names=names):
                module.imports += [(node, each.name, site) for each in names]
            case ast.ImportFrom(module=package, names=names, level=0):
                module.imports += [(node, f"{package}.{each.name}", site) for each in names]
            case ast.ImportFrom(module=package, names=names, level=level):
                base = [*PurePosixPath(module.path).parts[:-level], *filter(None, [package])]
                module.relative_imports += [".".join([*base, each.name]) for each in names]
        for child in ast.iter_child_nodes(node):
            self._visit(child, site)
        if isinstance(node, ast.Call):  # after its arguments, which are evaluated before it
            module.calls.append(Call(node, module.name_of(node.func, site.scope), site))

    def _visit_function(self, node: Function, site: Site) -> None:
        module = self._module
        for each in [*node.decorator_list, *_defaults(node.args)]:
            self._visit(each, site)
        decorators = (module.name_of(each, site.scope) for each in node.decorator_list)
        inner = Site(module.scopes[node], tuple(filter(None, decorators)), site.is_script)
        self._visit_all(node.body, inner)


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *filter(None, arguments.kw_defaults)]


def _target(call: Call) -> ast.expr | None:
    """Return the function that a thread or an executor is to run."""
    match last(call.node.func):
        case "Thread" | "Process":
            return call.given("target", 1)
        case "Timer":
            return call.given("function", 1)
        case "submit" | "start_new_thread" | "apply_async":
            return call.given("func", 0)
    return None


def last(node: ast.AST) -> str:
    """Return the last name of a dotted one."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _asks_for_main(test: ast.expr) -> bool:
    return any(
        isinstance(each, ast.Constant) and each.value == "__main__" for each in ast.walk(test)
    )


def _asks_for_debugging(test: ast.expr) -> bool:
    match test:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return "debug" in name.lower()
        case ast.Compare(ops=[ast.In()], comparators=[flags]):
            return "debug" in ast.unparse(flags).lower()
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(_asks_for_debugging, values))
    return False


def _is_for_types(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def walked(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of *nodes*, but not those of functions and classes inside them."""
    todo: list[ast.AST] = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (*Function.__args__, ast.ClassDef, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(node))

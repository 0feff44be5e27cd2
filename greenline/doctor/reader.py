"""Read one Python file into a :class:`~greenline.doctor.module.Module`."""

import ast
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath

from greenline.doctor.module import Call, Function, Module, Scope, Site, defaults, last, walked

LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
IGNORE = re.compile(r"#\s*greenline:\s*ignore\[([A-Z0-9, ]+)\]")


def parse(source: bytes) -> ast.Module:
    """
    Return the syntax tree of a file.

    :raises SyntaxError: it is no Python, has an unknown encoding, or is nested too deeply.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of the application's code
            return ast.parse(source)
    except (MemoryError, RecursionError) as error:  # too deep for the parser; for the tree
        raise SyntaxError("nested too deeply") from error
    except ValueError as error:  # null bytes, in older versions of Python
        raise SyntaxError(str(error)) from error


def read(path: Path, shown: str) -> Module:
    """
    Read a file.

    :param path: where it is.
    :param shown: the path that findings show.
    :raises SyntaxError: :func:`parse` has raised it, or it is nested too deeply to be walked.
    :raises OSError: it cannot be read.
    """
    source = path.read_bytes()
    module = Module(shown, parse(source), source.count(b"\n"), _ignored(source))
    try:
        _Reader(module).read()
    except RecursionError as error:
        raise SyntaxError("nested too deeply") from error
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
        top.background.update(self._of_commands())

    def _background(self) -> Iterator[ast.AST]:
        """Yield the functions that only threads run: nothing else in the file calls them."""
        calls = self._module.calls
        # A function that asks a future for its result waits for what it has submitted.
        waiting = {call.site.scope for call in calls if last(call.node.func) == "result"}
        given = {
            last(each)
            for call in calls
            if (each := _target(call)) is not None
            and not (last(call.node.func) == "submit" and call.site.scope in waiting)
        }
        given -= {last(call.node.func) for call in calls}
        for node, scope in self._module.scopes.items():
            if not isinstance(node, ast.FunctionDef):
                continue
            owner = scope.parent.node if scope.parent else None
            bases = owner.bases if isinstance(owner, ast.ClassDef) else ()
            is_run = node.name == "run" and any(last(each) == "Thread" for each in bases)
            if is_run or node.name in given:
                yield node

    def _of_commands(self) -> Iterator[ast.AST]:
        """Yield the private functions that only tasks, commands and threads call."""
        tree = self._module.tree
        found = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name[0] == "_" and not node.decorator_list
        ]
        if not found:
            return
        sites: dict[str, list[Site]] = {}
        for call in self._module.calls:
            if isinstance(call.node.func, ast.Name):
                sites.setdefault(call.node.func.id, []).append(call.site)
        # One that is passed on may be called by anything.
        mentions = Counter(each.id for each in ast.walk(tree) if isinstance(each, ast.Name))
        for node in found:
            calls = sites.get(node.name, [])
            if calls and len(calls) == mentions[node.name] and all(one.is_command for one in calls):
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
        for each in [*getattr(node, "decorator_list", ()), *defaults(node.args)]:
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
            if isinstance(node, LEAVES):  # what stands behind it is never run
                return

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
        for each in [*node.decorator_list, *defaults(node.args)]:
            self._visit(each, site)
        decorators = (module.name_of(each, site.scope) for each in node.decorator_list)
        inner = Site(module.scopes[node], tuple(filter(None, decorators)), site.is_script)
        self._visit_all(node.body, inner)


def _target(call: Call) -> ast.expr | None:
    """Return the function that a thread or an executor is to run."""
    match last(call.node.func):
        case "Thread" | "Process":
            return call.given("target", 1)
        case "Timer":
            return call.given("function", 1)
        case "submit" | "start_new_thread" | "apply_async" | "add_job":
            return call.given("func", 0)
    return None


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

"""Call a function right after a module was imported, without importing it earlier."""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


class _Finder(MetaPathFinder):
    """A finder that asks the other finders, and calls actions after the module was executed."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.actions:
            return None
        for finder in sys.meta_path:
            # One without find_spec, as bottle has, is old. It is asked by Python itself, if at all.
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: ModuleSpec | None = find_spec(fullname, path, target)
            if spec is not None:
                return self._acting(spec)
        return None

    def _acting(self, spec: ModuleSpec) -> ModuleSpec:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:  # a folder without an __init__.py, which has the name of the module
            return spec

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            for action in self.actions.pop(spec.name, ()):
                action(module)

        # Set on the instance, so that the module keeps its own loader in all other respects.
        loader.exec_module = execute_and_act
        return spec


_finder = _Finder()


def after_import(module: str, action: Action) -> None:
    """
    Call *action* with a module: now if the module is imported, else right after its import.

    :param module: the full name of the module, str.
    :param action: called once, with the module.
    """
    if module in sys.modules or module in sys.builtin_module_names:
        action(importlib.import_module(module))
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.actions.setdefault(module, []).append(action)


def forget_actions() -> None:
    """Import the modules of :func:`after_import` as any other, in a child that runs a command."""
    _finder.actions.clear()

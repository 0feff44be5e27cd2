"""
What ``GREENLINE_OFFLOAD`` names: the grammar, and what is done when a module is imported.

``off`` alone turns everything off. Otherwise there are names, with commas between them, of what is
run in threads besides what always is: ``mysqlclient``, or ``package.module:function``, where the
function may be a method (``package.module:Class.method``).
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from types import ModuleType
from typing import Any

from greenline.errors import ConfigError
from greenline.offload import threads
from greenline.settings import OFFLOAD

Action = Callable[[ModuleType], None]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a module as the others do, and has actions done after it was executed."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.actions:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                return self._acting(spec)
        return None

    def _acting(self, spec: importlib.machinery.ModuleSpec) -> importlib.machinery.ModuleSpec:
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            for action in self.actions.pop(spec.name, ()):
                action(module)

        # On the instance, so that all the rest is asked of the module's own loader.
        loader.exec_module = execute_and_act
        return spec


_finder = _Finder()


def after_import(module: str, action: Action) -> None:
    """Call *action* with the module: now if it is imported, otherwise right after its import."""
    if module in sys.modules or module in sys.builtin_module_names:
        action(importlib.import_module(module))
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.actions.setdefault(module, []).append(action)


def require_package(name: str) -> None:
    """
    Prove that the package of *name* can be imported; nothing is imported for it.

    :raises ConfigError: there is none.
    """
    package = name.partition(":")[0].partition(".")[0]
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise ConfigError(f"{OFFLOAD.name}: {name!r}: there is no module {package!r}")


def wrap(name: str) -> None:
    """
    Have the function that *name* names run in a native thread.

    :param name: ``package.module:function`` or ``package.module:Class.method``.
    """
    module, _, path = name.partition(":")
    after_import(module, partial(_replace, name, path))


def _replace(name: str, path: str, module: ModuleType) -> None:
    *owners, attribute = path.split(".")
    owner: Any = module
    try:
        for each in owners:
            owner = getattr(owner, each)
        # As it stands in the class: a static method is not bound.
        original = vars(owner).get(attribute) or getattr(owner, attribute)
        callable_ = original.__func__ if isinstance(original, (staticmethod, classmethod)) else None
        wrapped: Any = _in_a_thread(callable_ or original)
        setattr(owner, attribute, type(original)(wrapped) if callable_ else wrapped)
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"{OFFLOAD.name}: {name!r}: {error}") from error


def _in_a_thread(original: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(original):
        raise TypeError("it cannot be called")

    def run(*args: Any, **kwargs: Any) -> Any:
        return threads.run(original, *args, **kwargs)

    update_wrapper(run, original)
    return run

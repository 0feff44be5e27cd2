"""
Import the modules of a package at their first use as attributes of the package.

Internal: applications import nothing from here.
"""

from collections.abc import Callable, Collection
from importlib import import_module
from types import ModuleType


def modules(package: str, names: Collection[str]) -> Callable[[str], ModuleType]:
    """
    Return the ``__getattr__`` of a package that imports *names*.

    :param package: the ``__name__`` of the package, str.
    :param names: the names of modules in the package.
    """

    def __getattr__(name: str) -> ModuleType:  # noqa: N807 - the name in a traceback
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return __getattr__

"""
Import the modules of a package at the first use of its names.

Internal: applications import nothing from here.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any

from greenline.extras import needs_extra


def modules(package: str, names: Collection[str]) -> Callable[[str], ModuleType]:
    """
    Return the ``__getattr__`` of a package whose public names are modules of it.

    :param package: the ``__name__`` of the package, str.
    :param names: the names of the modules.
    """

    def __getattr__(name: str) -> ModuleType:  # noqa: N807 - the name in a traceback
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return __getattr__


def attributes(
    package: str, homes: Mapping[str, str], extra: str | None = None
) -> Callable[[str], Any]:
    """
    Return the ``__getattr__`` of a package whose public names are defined in modules of it.

    :param package: the ``__name__`` of the package, str.
    :param homes: the module of each name, without the package.
    :param extra: the extra that the modules need, str, default None.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - the name in a traceback
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs_extra(extra) if extra else nullcontext():
            return getattr(import_module(f"{package}.{homes[name]}"), name)

    return __getattr__

"""
Run the functions that ``GREENLINE_OFFLOAD`` names in native threads.

A name is ``package.module:function`` or ``package.module:Class.method``.
"""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial, update_wrapper
from types import ModuleType
from typing import Any

from greenline.errors import ConfigError
from greenline.offload import threads
from greenline.offload.imports import after_import
from greenline.settings import OFFLOAD


def require_package(name: str) -> None:
    """
    Prove that the package of *name* can be imported, without importing it.

    :param name: ``package.module:function``.
    :raises ConfigError: there is no such package.
    """
    package = name.partition(":")[0].partition(".")[0]
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise ConfigError(f"{OFFLOAD.name}: {name!r}: there is no module {package!r}")


def wrap(name: str) -> None:
    """
    Replace the function that *name* names by one that runs it in a native thread.

    :param name: ``package.module:function`` or ``package.module:Class.method``.
    """
    module, _, path = name.partition(":")
    after_import(module, partial(_replace, name, path))


def _replace(name: str, path: str, module: ModuleType) -> None:
    try:
        replace(module, path, _in_a_thread)
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"{OFFLOAD.name}: {name!r}: {error}") from error


def replace(module: Any, path: str, wrap: Callable[[Any], Any]) -> None:
    """
    Replace a function by what *wrap* returns for it.

    :param module: the module.
    :param path: ``function`` or ``Class.method`` in it, str.
    :param wrap: takes a function and returns one.
    :raises AttributeError: there is none of this name.
    """
    owner, original, func = find(module, path)
    wrapped = wrap(func)
    if func is not original:
        wrapped = type(original)(wrapped)
    setattr(owner, path.rpartition(".")[2], wrapped)


def find(module: Any, path: str) -> tuple[Any, Any, Any]:
    """
    Find a function by its name.

    :param module: the module.
    :param path: ``function`` or ``Class.method`` in it, str.
    :returns: the module or class that has it, what it has there, and the function in that: they
        differ for a static or class method.
    :raises AttributeError: there is none of this name.
    """
    *owners, attribute = path.split(".")
    owner: Any = module
    for each in owners:
        owner = getattr(owner, each)
    # From vars(), because getattr() would return a static or class method bound or unwrapped.
    original = vars(owner).get(attribute) or getattr(owner, attribute)
    is_wrapped = isinstance(original, staticmethod | classmethod)
    return owner, original, original.__func__ if is_wrapped else original


def _in_a_thread(original: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(original):
        raise TypeError("it cannot be called")

    def run(*args: Any, **kwargs: Any) -> Any:
        return threads.run(original, *args, **kwargs)

    update_wrapper(run, original)
    return run

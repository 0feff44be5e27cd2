"""
Import the modules of a package at the first use of its names; name the extra that brings a missing
library.

Internal: applications import nothing from here.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any

# What each extra of the package brings, by the name of the module that is imported.
MODULES = {
    "cache": {"cachetools"},
    "deploy": {"crossplane"},
    "doctor": {"rich"},
    "flask": {"flask", "werkzeug"},
    "log": {"pythonjsonlogger"},
    "ops": {"prometheus_client", "rich"},
    "otel": {"opentelemetry"},
    "mongo": {"bson", "pymongo", "tenacity"},
    "postgres": {"psycopg2"},
    "tune": {"aiohttp", "jinja2", "lmfit", "matplotlib", "numpy", "prometheus_client", "rich"},
}
# The extra builds psycopg2 from source, which needs a C compiler and pg_config.
OTHERWISE = {"postgres": ", or psycopg2-binary"}


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


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """
    Let a failed import in the block say which extra of the package to install.

    :param name: the extra, which is the name of the room too, str.
    :raises ModuleNotFoundError: a module of the extra is missing. Other errors pass unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]  # of psycopg2.extensions too
        if missing not in MODULES[name]:
            raise
        otherwise = OTHERWISE.get(name, "")
        message = f"greenline.{name} needs {missing}: pip install 'greenline[{name}]'{otherwise}"
        # Without the cause: the line says all of it.
        raise ModuleNotFoundError(message, name=missing) from None

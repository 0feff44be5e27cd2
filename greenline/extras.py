"""
Name the extra of the package that brings a missing library.

Internal: applications import nothing from here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

# What each extra of the package brings, by the name of the module that is imported.
MODULES = {
    "deploy": {"crossplane"},
    "flask": {"flask", "werkzeug"},
    "mongo": {"bson", "pymongo", "tenacity"},
    "postgres": {"psycopg2"},
}
# The extra builds psycopg2 from source, which needs a C compiler and pg_config.
OTHERWISE = {"postgres": ", or psycopg2-binary"}


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
        if error.name not in MODULES[name]:
            raise
        otherwise = OTHERWISE.get(name, "")
        message = f"greenline.{name} needs {error.name}: pip install 'greenline[{name}]'{otherwise}"
        # Without the cause: the line says all of it.
        raise ModuleNotFoundError(message, name=error.name) from None

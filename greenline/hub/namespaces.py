"""Look into the modules that are loaded, without code of their own."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# A module may be of a class that imports it at the first attribute, or that answers for another one
# with None: importlib.util.LazyLoader's, or py's when there is no pytest.
_namespace_of = vars(ModuleType)["__dict__"].__get__


def namespaces() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name that each module has, whatever it was imported by, and its globals."""
    for imported_by, module in list(sys.modules.items()):
        if issubclass(type(module), ModuleType):
            namespace = _namespace_of(module)
            yield namespace.get("__name__", imported_by), namespace

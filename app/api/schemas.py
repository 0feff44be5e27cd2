"""
Make JSON schemas (2020-12) of the API's types, for the OpenAPI document.

A Struct is a component under its own name; the Struct of a query string becomes parameters.
"""

import re
from typing import Any

import msgspec
from msgspec import Struct

Schema = dict[str, Any]
PREFIX = "#/components/schemas/"
NULL = {"type": "null"}


def reference(name: str) -> Schema:
    """Return the reference to the component *name*."""
    return {"$ref": PREFIX + name}


def patch_name(name: str) -> str:
    """Return the name of a component's patch: BookPatch for BookInput."""
    return f"{name.removesuffix('Input')}Patch"


class Schemas:
    """Make schemas and collect the components that they refer to."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}
        self._found: dict[Any, Schema] = {}  # many operations name the same types

    def of(self, type_: Any) -> Schema:
        """
        Return the schema of *type_*.

        :raises ValueError: two different types have one name.
        """
        if type_ not in self._found:
            # Several types may refer to one component, which msgspec then makes again, equal.
            self._found[type_], found = _read(type_)
            for name, component in found.items():
                if self.components.setdefault(name, component) != component:
                    raise ValueError(f"two types are called {name}")
        return self._found[type_]

    def patch_of(self, type_: type[Struct]) -> Schema:
        """Return the schema of a merge patch of *type_*."""
        self.of(type_)
        return self._patch_of(type_.__name__)

    def _patch_of(self, name: str) -> Schema:
        patch, whole = patch_name(name), self.components[name]
        if patch not in self.components:
            self.components[patch] = {
                "title": patch,
                "description": f"What changes of it: a merge patch of {name}.",
                "type": "object",
                "properties": {
                    field: self._changed(schema, is_required=field in whole["required"])
                    for field, schema in whole["properties"].items()
                },
                "additionalProperties": False,
            }
        return reference(patch)

    def _changed(self, schema: Schema, *, is_required: bool) -> Schema:
        """Return the schema of a field in a patch, in which no field is required."""
        # Null restores the default of an optional field. The default itself is left out: a field
        # that a patch does not have stays as it is.
        some = schema.get("anyOf", [{k: v for k, v in schema.items() if k != "default"}])
        some = [self._partly(one) for one in some]
        if not is_required and NULL not in some:
            some.append(NULL)
        return some[0] if len(some) == 1 else {"anyOf": some}

    def _partly(self, schema: Schema) -> Schema:
        # RFC 7396 patches objects inside an object in the same way.
        name = schema.get("$ref", "").removeprefix(PREFIX)
        if "properties" in self.components.get(name, {}):
            return self._patch_of(name)
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            return {**schema, "additionalProperties": self._changed(others, is_required=False)}
        return schema


def parameters(type_: type[Struct]) -> list[Schema]:
    """Return the parameters of a query string of type *type_*."""
    _, found = _read(type_)
    fields = found[type_.__name__]
    return [
        _parameter(name, schema, name in fields["required"])
        for name, schema in fields["properties"].items()
    ]


def _parameter(name: str, schema: Schema, is_required: bool) -> Schema:
    """Return one parameter; None is the default of an optional one, never a value."""
    if NULL in schema.get("anyOf", ()):
        some = [one for one in schema["anyOf"] if one != NULL]
        schema = some[0] if len(some) == 1 else {"anyOf": some}
    parameter = {"name": name, "in": "query", "required": is_required, "schema": schema}
    if "description" in schema:
        parameter["description"] = schema["description"]
    return parameter


def _read(type_: Any) -> tuple[Schema, dict[str, Schema]]:
    (schema,), found = msgspec.json.schema_components([type_], ref_template=PREFIX + "{name}")
    for component in found.values():
        for name, field in component.get("properties", {}).items():
            _exemplify(name, field)
    return schema, found


def _exemplify(name: str, schema: Schema) -> None:
    # The field's own name is an example that people can read; pages would generate one from the
    # pattern.
    if "pattern" in schema and re.search(schema["pattern"], name):
        schema.setdefault("examples", [name])
    for inner in (*schema.get("anyOf", ()), schema.get("items")):
        if isinstance(inner, dict):
            _exemplify(name, inner)

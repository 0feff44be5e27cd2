"""
The types of the API as JSON schemas (2020-12), for the OpenAPI document.

1. A Struct is a component of its own name; a query's Struct is parameters instead.
2. What patches a Struct is a second component: no field is needed, and null puts back the default
   of those that have one. Objects in it are patched in the same way.
3. A text that has to match a pattern shows its field's name as an example, which is more to read
   than what a page would make of the pattern.
"""

import re
from typing import Any

import msgspec
from msgspec import Struct

Schema = dict[str, Any]
PREFIX = "#/components/schemas/"
NULL = {"type": "null"}


def reference(name: str) -> Schema:
    """Return the reference to the component of this name."""
    return {"$ref": PREFIX + name}


def patch_name(name: str) -> str:
    """Return the component that patches the one of this *name*: BookPatch for BookInput."""
    return f"{name.removesuffix('Input')}Patch"


class Schemas:
    """Schemas, and the components that they refer to."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def of(self, type_: Any) -> Schema:
        """
        Return the schema of *type_*.

        Raises:
            ValueError: another type has the name of one that is in it.
        """
        schema, found = _read(type_)
        for name, component in found.items():
            if self.components.setdefault(name, component) != component:
                raise ValueError(f"two types are called {name}")
        return schema

    def patch_of(self, type_: type[Struct]) -> Schema:
        """Return the schema of what patches a *type_*."""
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
        """Return the schema of a field in a patch."""
        some = schema.get("anyOf", [{k: v for k, v in schema.items() if k != "default"}])
        some = [self._partly(one) for one in some]
        if not is_required and NULL not in some:
            some.append(NULL)
        return some[0] if len(some) == 1 else {"anyOf": some}

    def _partly(self, schema: Schema) -> Schema:
        name = schema.get("$ref", "").removeprefix(PREFIX)
        if "properties" in self.components.get(name, {}):
            return self._patch_of(name)
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            return {**schema, "additionalProperties": self._changed(others, is_required=False)}
        return schema


def parameters(type_: type[Struct]) -> list[Schema]:
    """Return the parameters of a query string that is read as *type_*."""
    _, found = _read(type_)
    fields = found[type_.__name__]
    return [
        _parameter(name, schema, name in fields["required"])
        for name, schema in fields["properties"].items()
    ]


def _parameter(name: str, schema: Schema, is_required: bool) -> Schema:
    """Return one parameter: null stands for one that is not there."""
    if NULL in schema.get("anyOf", ()):
        some = [one for one in schema["anyOf"] if one != NULL]
        schema = some[0] if len(some) == 1 else {"anyOf": some}
    told = {"name": name, "in": "query", "required": is_required, "schema": schema}
    if "description" in schema:
        told["description"] = schema["description"]
    return told


def _read(type_: Any) -> tuple[Schema, dict[str, Schema]]:
    (schema,), found = msgspec.json.schema_components([type_], ref_template=PREFIX + "{name}")
    for component in found.values():
        for name, field in component.get("properties", {}).items():
            _exemplify(name, field)
    return schema, found


def _exemplify(name: str, schema: Schema) -> None:
    if "pattern" in schema and re.search(schema["pattern"], name):
        schema.setdefault("examples", [name])
    for inner in (*schema.get("anyOf", ()), schema.get("items")):
        if isinstance(inner, dict):
            _exemplify(name, inner)

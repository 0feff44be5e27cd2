"""
Products, in MongoDB: some lack some fields, which is not the same as having them empty.

``lacking`` asks for what has no such field, and ``gtin=`` for what has an empty one; the same index
serves both, as it holds what lacks the field as null.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from app.records import ProductInput
from app.store import once_in_documents
from app.store.collections import Collection
from app.store.indexes import Index
from app.store.ports import Document

# What products can lack, and be asked for by. A description is too long to be indexed.
OPTIONAL = ("brand", "gtin", "mpn", "imageLink")


class Products(Collection[ProductInput]):
    """The products' repository."""

    name = "products"
    noun = "product"
    unique = frozenset({"id", "offerId"})
    indexes: ClassVar = (
        Index(("offerId",), unique=True),
        *(Index((field, "_id")) for field in OPTIONAL),
        *(Index((field, "offerId")) for field in OPTIONAL),
        once_in_documents.INDEX,
    )

    def where(self, filters: Mapping[str, Any]) -> Document:
        equal = {name: value for name, value in filters.items() if name != "lacking"}
        if "lacking" not in filters:
            return equal
        return {"$and": [equal, {filters["lacking"]: {"$exists": False}}]}

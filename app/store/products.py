"""
Products, in MongoDB: some lack some fields, which is not the same as having them empty.

``lacking`` asks for what has no such field, and ``gtin=`` for what has an empty one; the same index
serves both, as it holds what lacks the field as null.

Of the slugs only that of one country can be asked for: each takes four indexes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from app.records import ProductInput
from app.store import once_in_documents
from app.store.collections import Collection, both
from app.store.indexes import Index
from app.store.ports import Document

# Filters whose fields are within others.
PATHS = {"slug_US": "slug.US", "currency": "price.currency"}
# What products are asked for by. A description is too long to be indexed.
SEARCHED = (
    ("brand",), ("gtin",), ("mpn",), ("imageLink",), ("slug.US",), ("price.currency",),
    ("slug.US", "price.currency"),
)  # fmt: skip


class Products(Collection[ProductInput]):
    """The products' repository."""

    name = "products"
    noun = "product"
    unique = frozenset({"id", "offerId"})
    indexes: ClassVar = (
        Index(("offerId",), unique=True),
        *(Index((*fields, "_id")) for fields in SEARCHED),
        *(Index((*fields, "offerId")) for fields in SEARCHED),
        once_in_documents.INDEX,
    )

    def where(self, filters: Mapping[str, Any]) -> Document:
        equal = {PATHS.get(name, name): filters[name] for name in filters if name != "lacking"}
        if "lacking" not in filters:
            return equal
        # Null finds what lacks the field, and a null, which the API stores nowhere. The index
        # serves it as it serves a value; for $exists some servers use none.
        return both(equal, {filters["lacking"]: None})

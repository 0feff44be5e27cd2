"""
Products in MongoDB. A product may lack fields, which differs from having them empty.

The filter ``lacking`` finds products without a field, and ``gtin=`` those in which it is empty. Of
the slugs only that of one country can be filtered, because each takes four indexes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from app.records import ProductInput
from app.store import idempotency_in_documents
from app.store.collections import Collection, both
from app.store.indexes import Index
from app.store.ports import Document

# Filters of fields inside others.
PATHS = {"slug_US": "slug.US", "currency": "price.currency"}
# The combinations of filters that have indexes. A description is too long for one.
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
        idempotency_in_documents.INDEX,
    )

    def where(self, filters: Mapping[str, Any]) -> Document:
        equal = {PATHS.get(name, name): filters[name] for name in filters if name != "lacking"}
        if "lacking" not in filters:
            return equal
        # Null matches documents without the field (and nulls, which the API never stores). The
        # index holds them as null; for $exists some servers use no index.
        return both(equal, {filters["lacking"]: None})

"""``/products``: products, which may lack fields. A filter finds those that lack one."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from app.api.resource import Resource
from app.records import NO_NUL, Currency, DocumentId, OfferId, Product, ProductInput
from app.store.ports import Repository

Value = Annotated[str, Meta(max_length=2_000, pattern=NO_NUL)]
Field = Literal["brand", "gtin", "mpn", "imageLink", "slug.US"]
Lacking = Annotated[Field, Meta(description="without this field; with an empty one: FIELD=")]


class ProductFilters(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields by which products can be filtered."""

    offerId: OfferId | None = None  # noqa: N815
    brand: Value | None = None
    gtin: Value | None = None
    mpn: Value | None = None
    imageLink: Value | None = None  # noqa: N815
    slug_US: Value | None = field(default=None, name="slug.US")  # noqa: N815
    currency: Currency | None = None
    lacking: Lacking | None = None


def resource(products: Repository[ProductInput]) -> Resource[ProductInput]:
    """Describe the resource; *products* is its repository."""
    return Resource(
        name="products",
        noun="product",
        repository=products,
        input=ProductInput,
        item=Product,
        filters=ProductFilters,
        orders={"id": DocumentId, "offerId": str},
        id_type=DocumentId,
        converter="objectid",
    )

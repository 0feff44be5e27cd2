"""``/authors``: the authors of books. Their names are unique."""

from datetime import datetime

from msgspec import Struct

from app.api.resource import Resource
from app.records import Author, AuthorInput, Id, Name
from app.store.ports import NamedItems


class AuthorFilters(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields by which authors can be filtered."""

    name: Name | None = None


def resource(authors: NamedItems[AuthorInput]) -> Resource[AuthorInput]:
    """Describe the resource; *authors* is its repository."""
    return Resource(
        name="authors",
        noun="author",
        repository=authors,
        input=AuthorInput,
        item=Author,
        filters=AuthorFilters,
        orders={"id": int, "name": str, "created_at": datetime, "updated_at": datetime},
        id_type=Id,
        converter="id",
        by_name=authors,
    )

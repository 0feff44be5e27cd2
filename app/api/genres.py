"""``/genres``: the genres of books. Their names are unique."""

from datetime import datetime

from msgspec import Struct

from app.api.resource import Resource
from app.records import Genre, GenreInput, Id, Name
from app.store.ports import NamedItems


class GenreFilters(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields by which genres can be filtered."""

    name: Name | None = None


def resource(genres: NamedItems[GenreInput]) -> Resource[GenreInput]:
    """Describe the resource; *genres* is its repository."""
    return Resource(
        name="genres",
        noun="genre",
        repository=genres,
        input=GenreInput,
        item=Genre,
        filters=GenreFilters,
        orders={"id": int, "name": str, "created_at": datetime, "updated_at": datetime},
        id_type=Id,
        converter="id",
        by_name=genres,
    )

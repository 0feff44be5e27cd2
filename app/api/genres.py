"""``/genres``: what books show; each has a name of its own."""

from datetime import datetime

from msgspec import Struct

from app.api.resource import Resource
from app.records import Genre, GenreInput, Id, Name
from app.store.genres import Genres


class GenreFilters(Struct, frozen=True, forbid_unknown_fields=True):
    """What genres can be asked for by."""

    name: Name | None = None


def resource(genres: Genres) -> Resource[GenreInput]:
    """Return what is served of *genres*."""
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

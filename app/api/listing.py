"""
Lists: from a query string to what the repository is asked for, and from its page to an answer.

A list is read forth and back by cursors, which keep their place while items come and go, or by
the number of the page, which does not. The answer has both neighbours as cursors, and as links
(RFC 8288).
"""

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlencode

import msgspec
from flask import Response
from msgspec import Meta, Struct

from app.api import cursors, http
from app.errors import Fault, InvalidRequest
from app.store.ports import Listing, Page, Position, Stored

MAX_LIMIT = 100
MAX_PAGE = 100_000
PLACES = ("page", "before", "after")

TOTAL = "Say in the answer how many there are in all."
Cursor = Annotated[str, Meta(min_length=1, max_length=4_000)]
# Query strings of each resource whose meaning is remembered: clients ask the same again and again.
MAX_REMEMBERED = 500


@dataclass(frozen=True, slots=True)
class Asked:
    """What a query string asks for: an order with its sign, and where its neighbours are."""

    order: str
    listing: Listing
    address: str  # to which a cursor is added


class Lists:
    """The lists of one resource: *orders* gives each field that it can be ordered by its type."""

    def __init__(
        self, name: str, filters: type[Struct], orders: Mapping[str, Any], limit: int, id_type: Any
    ) -> None:
        self._name = name
        self._filters = tuple(filters.__struct_fields__)
        signed = tuple(sign + order for order in orders for sign in ("", "-"))
        first = next(iter(orders))
        self.query = msgspec.defstruct(
            f"{name.capitalize()}Query",
            [
                *_fields_of(filters),
                ("order", Literal[signed], first),
                ("limit", Annotated[int, Meta(ge=1, le=MAX_LIMIT)], limit),
                ("page", Annotated[int, Meta(ge=1, le=MAX_PAGE)] | None, None),
                ("before", Cursor | None, None),
                ("after", Cursor | None, None),
                ("total", Annotated[bool, Meta(description=TOTAL)], False),
            ],
            frozen=True,
            forbid_unknown_fields=True,
            kw_only=True,
        )
        self._cursor_kinds = {
            order: types.GenericAlias(tuple, (kind, id_type)) for order, kind in orders.items()
        }
        self._remembered = lru_cache(maxsize=MAX_REMEMBERED)(self._asked)
        self._places = {
            order: msgspec.json.Decoder(msgspec.defstruct("Place", [("id", id_type), (order, Any)]))
            if order != "id"
            else msgspec.json.Decoder(msgspec.defstruct("Place", [("id", id_type)]))
            for order in orders
        }

    def asked(self) -> Asked:
        """
        Return what the request's query string asks for.

        Raises:
            InvalidRequest: lists every fault.
        """
        return self._remembered(http.environ()["QUERY_STRING"])

    def _asked(self, text: str) -> Asked:
        query: Any = http.parsed(text, self.query)
        places = [name for name in PLACES if getattr(query, name) is not None]
        if len(places) > 1:
            names = " and ".join(places)
            faults = [Fault(f"{names} exclude each other", name=name) for name in places]
            raise InvalidRequest(f"{names} exclude each other", faults)
        order = query.order.removeprefix("-")
        position = None
        cursor = query.before or query.after
        if cursor is not None:
            context = f"{self._name} {query.order}"
            value, item_id = cursors.decode(context, cursor, places[0], self._cursor_kinds[order])
            position = Position(value, item_id, before=query.before is not None)
        filters = {
            name: value for name in self._filters if (value := getattr(query, name)) is not None
        }
        descending = query.order.startswith("-")
        listing = Listing(
            order, descending, query.limit, filters, query.page or 1, position, query.total
        )
        given = parse_qsl(text, keep_blank_values=True)
        kept = urlencode([pair for pair in given if pair[0] not in PLACES])
        return Asked(query.order, listing, f"/{self._name}?{kept}{'&' if kept else ''}")

    def answer(self, asked: Asked, page: Page) -> Response:
        """Answer with *page*, its neighbours, and the total when it was asked for."""
        signed, listing, items = asked.order, asked.listing, page.items
        position = listing.position
        is_back = position is not None and position.before
        has_next = page.more or is_back
        has_previous = page.more if is_back else position is not None or listing.page > 1
        after = self._cursor(signed, items[-1]) if items and has_next else None
        before = self._cursor(signed, items[0]) if items and has_previous else None
        body = b'{"items":[%b],"next":%b,"previous":%b' % (
            b",".join(item.json for item in items),
            _text(after),
            _text(before),
        )
        if page.total is not None:
            body += b',"total":%d' % page.total
        response = http.json(body + b"}")
        links = [
            f'<{asked.address}{name}={cursor}>; rel="{relation}"'
            for relation, name, cursor in (("next", "after", after), ("prev", "before", before))
            if cursor is not None
        ]
        if links:
            response.headers["Link"] = ", ".join(links)
        return response

    def _cursor(self, signed: str, item: Stored) -> str:
        order = signed.removeprefix("-")
        place = self._places[order].decode(item.json)
        return cursors.encode(f"{self._name} {signed}", getattr(place, order), item.id)


def _text(cursor: str | None) -> bytes:
    return b"null" if cursor is None else f'"{cursor}"'.encode()


def _fields_of(struct: type[Struct]) -> Iterable[tuple[str, Any, Any]]:
    """Return name, type and default of each field of a Struct whose fields are all optional."""
    for field in msgspec.structs.fields(struct):
        yield field.name, field.type, field.default

"""
Lists: from a query string to what the repository is asked for, and from its page to an answer.

A list is read forth and back by cursors, which keep their place while items come and go, or by
the number of the page, which does not. The answer has both neighbours as cursors, and as links
(RFC 8288). Or it comes whole, as lines of JSON.
"""

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlencode

import msgspec
from flask import Response
from msgspec import Meta, Struct

from app.api import cursors, http
from app.api.accept import LINES
from app.errors import Fault, InvalidRequest
from app.store.ports import Listing, Page, Position, Stored

MAX_LIMIT = 100
MAX_PAGE = 100_000
PLACES = ("page", "before", "after")
# What has no meaning for a whole list.
OF_PAGES = ("limit", "page", "before", "total")

TOTAL = "Say in the answer how many there are in all."
Cursor = Annotated[str, Meta(min_length=1, max_length=6_000)]  # a title of control characters
# Query strings of each resource whose meaning is remembered: clients ask the same again and again.
MAX_REMEMBERED_CURSORS = 500


@dataclass(frozen=True, slots=True)
class Asked:
    """What a query string asks for: an order with its sign, and where its neighbours are."""

    order: str
    listing: Listing
    address: str  # to which a cursor is added
    is_last: bool = False  # the last page, which is read from the end


class Lists:
    """The lists of one resource: *orders* gives each field that it can be ordered by its type."""

    def __init__(
        self, name: str, filters: type[Struct], orders: Mapping[str, Any], limit: int, id_type: Any
    ) -> None:
        self._name = name
        self._filters = filters.__struct_fields__
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
        self._remembered = lru_cache(maxsize=MAX_REMEMBERED_CURSORS)(self._asked)
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
        context = f"{self._name} {query.order}"
        is_edge = cursor == cursors.edge(context)
        is_last = is_edge and query.before is not None
        if cursor is not None and not is_edge:
            value, item_id = cursors.decode(context, cursor, places[0], self._cursor_kinds[order])
            position = Position(value, item_id, before=query.before is not None)
        filters = given(query, self._filters)
        descending = query.order.startswith("-")
        listing = Listing(
            order,
            descending != is_last,
            query.limit,
            filters,
            query.page or 1,
            position,
            query.total,
        )
        pairs = parse_qsl(text, keep_blank_values=True)
        kept = urlencode([pair for pair in pairs if pair[0] not in PLACES])
        return Asked(query.order, listing, f"/{self._name}?{kept}{'&' if kept else ''}", is_last)

    def answer(self, asked: Asked, read: Callable[[Listing], Page]) -> Response:
        """Answer with the page that *read* finds, its neighbours, and the total if asked for."""
        page = read(asked.listing)
        items = page.items[::-1] if asked.is_last else page.items
        before, after = self._neighbours(asked, page.more, items)
        if not items and (before is not None or after is not None):
            listing = asked.listing
            first = Listing(listing.order, listing.descending, 1, listing.filters)
            if not read(first).items:
                before = after = None
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

    def stream(self, asked: Asked, read: Callable[[Listing], Page]) -> Response:
        """
        Answer with a line of JSON for each item of the list, from ``after`` on.

        An error before the first page is answered as ever. A later one cuts the connection: the
        client misses the end of the chunked body, and knows that the list is not whole.

        :raises InvalidRequest: the query asks for a page.
        """
        names = {name for name, _ in parse_qsl(http.environ()["QUERY_STRING"])}
        wrong = [
            Fault(f"{name} is for pages; {LINES} has the whole list", name=name)
            for name in OF_PAGES
            if name in names
        ]
        if wrong:
            raise InvalidRequest(faults=wrong)
        whole = replace(asked.listing, limit=MAX_LIMIT)
        return Response(self._lines(whole, read), mimetype=LINES)

    def _lines(self, listing: Listing, read: Callable[[Listing], Page]) -> Iterator[bytes]:
        # Pages, each from where the one before it ended, and no cursor of the server: that would
        # hold a connection (Postgres) or a session (MongoDB) for as long as the client takes, and
        # would not outlive a failover. Each page is read in memory, time and queue as a list's is,
        # and the next one only when the client has taken it.
        while True:
            page = read(listing)
            yield b"".join([item.json + b"\n" for item in page.items])
            if not page.more:
                return
            listing = replace(listing, position=self._position(listing.order, page.items[-1]))

    def _position(self, order: str, item: Stored) -> Position:
        place = self._places[order].decode(item.json)
        kind = self._cursor_kinds[order]
        return Position(*msgspec.convert((getattr(place, order), item.id), kind))

    def _neighbours(
        self, asked: Asked, more: bool, items: Sequence[Stored]
    ) -> tuple[str | None, str | None]:
        """Return the cursors of the pages before and after; of an empty one, of the edge."""
        signed, position = asked.order, asked.listing.position
        is_back = position is not None and position.before
        is_forth = position is not None or asked.listing.page > 1
        has_next = is_back or (more and not asked.is_last)
        has_previous = more if is_back or asked.is_last else is_forth
        if not items:
            edge = cursors.edge(f"{self._name} {signed}")
            return edge if has_previous else None, edge if has_next else None
        return (
            self._cursor(signed, items[0]) if has_previous else None,
            self._cursor(signed, items[-1]) if has_next else None,
        )

    def _cursor(self, signed: str, item: Stored) -> str:
        order = signed.removeprefix("-")
        place = self._places[order].decode(item.json)
        return cursors.encode(f"{self._name} {signed}", getattr(place, order), item.id)


def given(query: Struct, names: Iterable[str]) -> dict[str, Any]:
    """Return the filters of these *names* that *query* has."""
    return {name: value for name in names if (value := getattr(query, name)) is not None}


def _text(cursor: str | None) -> bytes:
    return b"null" if cursor is None else f'"{cursor}"'.encode()


def _fields_of(struct: type[Struct]) -> Iterable[tuple[str, Any, Any]]:
    """Return name, type and default of each field of a Struct whose fields are all optional."""
    for field in msgspec.structs.fields(struct):
        yield field.name, field.type, msgspec.field(default=field.default, name=field.encode_name)

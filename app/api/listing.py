"""
Lists: parse a query string into a Listing, and answer with a page or with the whole list.

A page is requested by a cursor, which keeps its position while items are added and deleted, or by
a number, which does not. The answer has the cursors of both neighbours, also as links (RFC 8288).
A whole list is sent as lines of JSON.
"""

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlencode

import msgspec
from flask import Response
from msgspec import Meta, Struct

from app.api import cursors, http
from app.api.accept import LINES
from app.errors import Fault, InvalidRequest
from app.store.ports import Listing, Page, Position, Repository

MAX_LIMIT = 100
MAX_PAGE = 100_000
PLACES = ("page", "before", "after")
# Parameters that have no meaning for a whole list.
OF_PAGES = ("limit", "page", "before", "total")

TOTAL = "Say in the answer how many there are in all."
Cursor = Annotated[str, Meta(min_length=1, max_length=6_000)]  # a title of control characters
# Parsed query strings that each resource caches: clients repeat the same ones.
MAX_REMEMBERED_CURSORS = 500


@dataclass(frozen=True, slots=True)
class Asked:
    """
    A parsed query string.

    :param order: the field that the list is ordered by, with a minus if descending, str.
    :param listing: the filters, the cursor and the size of the page.
    :param address: the URL to which a cursor is added, str.
    :param text: what was parsed, str.
    :param is_last: the last page is asked for, which is read from the end, bool. Default False.
    """

    order: str
    listing: Listing
    address: str
    text: str
    is_last: bool = False


class Shown(Struct, frozen=True):
    """
    A page as it is sent.

    :param body: JSON.
    :param headers: names and values.
    """

    body: bytes
    headers: tuple[tuple[str, str], ...]


class Lists:
    """
    The lists of one resource.

    :param name: of the resource, str.
    :param filters: the Struct of its filters, all optional.
    :param orders: type by the name of each field that it can be ordered by; the first is the
        default.
    :param limit: items in a page by default, int.
    :param id_type: type of an item's id.
    """

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
        # They decode only the two fields that a cursor needs, of a document that is JSON already.
        self._places: dict[str, msgspec.json.Decoder[Any]] = {
            order: msgspec.json.Decoder(
                msgspec.defstruct("Position", [("id", id_type), (order, Any)])
            )
            if order != "id"
            else msgspec.json.Decoder(msgspec.defstruct("Position", [("id", id_type)]))
            for order in orders
        }

    def asked(self) -> Asked:
        """
        Parse the request's query string.

        :raises InvalidRequest: it lists every fault.
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
        # "before" the edge is the last page: it is read in the opposite direction, from the end,
        # and reversed for the answer. "after" the edge is the first page: no position.
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
        # Links keep the filters, the order and the limit as the client wrote them.
        pairs = parse_qsl(text, keep_blank_values=True)
        kept = urlencode([pair for pair in pairs if pair[0] not in PLACES])
        address = f"/{self._name}?{kept}{'&' if kept else ''}"
        return Asked(query.order, listing, address, text, is_last)

    def answer(self, asked: Asked, repository: Repository[Any]) -> Response:
        """
        Answer with a page, the cursors of its neighbours, and the total if it was requested.

        :param asked: the parsed query string.
        :param repository: of the items.
        """
        make = partial(self._shown, asked, repository.page)
        # As it was asked for: the links repeat it.
        shown = repository.kept(asked.listing, asked.text, make)
        return http.json(shown.body, headers=shown.headers)

    def _shown(self, asked: Asked, read: Callable[[Listing], Page]) -> Shown:
        page = read(asked.listing)
        items = page.items[::-1] if asked.is_last else page.items
        before, after = self._neighbours(asked, page.more, items)
        if not items and (before is not None or after is not None):
            # An empty page has neighbours only if the list itself is not empty.
            listing = asked.listing
            first = Listing(listing.order, listing.descending, 1, listing.filters)
            if not read(first).items:
                before = after = None
        # The items are JSON already: joining them is cheaper than decoding and encoding.
        body = b'{"items":[%b],"next":%b,"previous":%b' % (
            b",".join(items),
            _text(after),
            _text(before),
        )
        if page.total is not None:
            body += b',"total":%d' % page.total
        links = [
            f'<{asked.address}{name}={cursor}>; rel="{relation}"'
            for relation, name, cursor in (("next", "after", after), ("prev", "before", before))
            if cursor is not None
        ]
        return Shown(body + b"}", (("Link", ", ".join(links)),) if links else ())

    def stream(self, asked: Asked, repository: Repository[Any]) -> Response:
        """
        Answer with a line of JSON for each item of the list, from ``after`` on.

        An error before the first page has its usual answer. A later one cuts the connection: the
        client misses the end of the chunked body, so it knows that the list is incomplete.

        :param asked: the parsed query string.
        :param repository: of the items.
        :raises InvalidRequest: the query has a parameter that only pages have.
        """
        # The names as sent: limit and total have defaults, so the parsed query cannot show them.
        names = {name for name, _ in parse_qsl(http.environ()["QUERY_STRING"])}
        wrong = [
            Fault(f"{name} is for pages; {LINES} has the whole list", name=name)
            for name in OF_PAGES
            if name in names
        ]
        if wrong:
            raise InvalidRequest(faults=wrong)
        whole = replace(asked.listing, limit=MAX_LIMIT)
        return Response(self._lines(whole, repository.page), mimetype=LINES)

    def _lines(self, listing: Listing, read: Callable[[Listing], Page]) -> Iterator[bytes]:
        # Page by page, each from the end of the one before. A server-side cursor would hold a
        # connection (Postgres) or a session (MongoDB) as long as the client reads, and would not
        # survive a failover. The next page is read only after the client has taken the last one,
        # so memory is bounded by a page.
        while True:
            page = read(listing)
            yield b"".join([item + b"\n" for item in page.items])
            if not page.more:
                return
            listing = replace(listing, position=self._position(listing.order, page.items[-1]))

    def _position(self, order: str, item: bytes) -> Position:
        place = self._places[order].decode(item)
        # As from a client's cursor: dates and times become Python's again.
        kind = self._cursor_kinds[order]
        return Position(*msgspec.convert((getattr(place, order), place.id), kind))

    def _neighbours(
        self, asked: Asked, more: bool, items: Sequence[bytes]
    ) -> tuple[str | None, str | None]:
        """Return the cursors of the previous and the next page; an empty page has the edge's."""
        signed, position = asked.order, asked.listing.position
        is_back = position is not None and position.before
        is_forth = position is not None or asked.listing.page > 1
        # A page says whether more items follow in the direction in which it was read. In the other
        # direction there are some if the page was reached by a cursor or a number.
        has_next = is_back or (more and not asked.is_last)
        has_previous = more if is_back or asked.is_last else is_forth
        if not items:
            edge = cursors.edge(f"{self._name} {signed}")
            return edge if has_previous else None, edge if has_next else None
        return (
            self._cursor(signed, items[0]) if has_previous else None,
            self._cursor(signed, items[-1]) if has_next else None,
        )

    def _cursor(self, signed: str, item: bytes) -> str:
        order = signed.removeprefix("-")
        place = self._places[order].decode(item)
        return cursors.encode(f"{self._name} {signed}", getattr(place, order), place.id)


def given(query: Struct, names: Iterable[str]) -> dict[str, Any]:
    """
    Return the filters that a query sets.

    :param query: the parsed query string.
    :param names: of the filters.
    """
    return {name: value for name in names if (value := getattr(query, name)) is not None}


def _text(cursor: str | None) -> bytes:
    return b"null" if cursor is None else f'"{cursor}"'.encode()


def _fields_of(struct: type[Struct]) -> Iterable[tuple[str, Any, Any]]:
    """Return name, type and default of each field of a Struct whose fields are all optional."""
    for field in msgspec.structs.fields(struct):
        yield field.name, field.type, msgspec.field(default=field.default, name=field.encode_name)

"""
The operations that every resource has, over a repository of any database.

All resources have the same operations, paths and shapes. A batch has 1 to ``MAX_BATCH`` items and
is done completely or not at all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Generic

import msgspec
from flask import Response, request
from msgspec import Meta, Struct

from app.api import accept, faults, http, idempotency, merge_patch, schemas, versions
from app.api.listing import Lists, given
from app.api.operations import Operation, Routes, Scope
from app.errors import Fault, InvalidRequest, NotFound
from app.records import Name, require_shallow
from app.store.ports import Change, Document, I, NamedRepository, Repository, Stored

MAX_BATCH = 1_000
ABOUT_LISTS = (
    "An item is listed if it equals each given field. `order` is the name of a field; with a minus"
    " before it, the order is descending. A page is chosen by `page`, its number, or by a cursor:"
    " it begins after the cursor `after`, or ends before the cursor `before`. Cursors are the"
    " `next` and `previous` of a response with the same `order`.\n\n"
    "With `Accept: application/x-ndjson` the response has all items after the cursor `after`, one"
    " a line. If an error occurs meanwhile, the connection is closed before the end of the chunked"
    " body."
)
OK, CREATED, NO_CONTENT = HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT


@dataclass(frozen=True, kw_only=True)
class Resource(Generic[I]):
    """
    The names, types, orders and rights of a resource.

    :param name: plural, as in the path, str.
    :param noun: singular, as in messages, str.
    :param repository: of its items.
    :param input: the type of an item as clients send it.
    :param item: the type of an item as it is answered.
    :param filters: the Struct of the filters.
    :param orders: type by the name of each field that a list can be ordered by; the first is
        the default.
    :param limit: items in a page by default, int. Default 50.
    :param id_type: the type of an id.
    :param converter: Flask's converter of the id in a path, str.
    :param read: the right to read. Default ``Scope.READ``.
    :param write: the right to write. Default ``Scope.WRITE``.
    :param by_name: the repository, if names are unique. Default None.
    :param as_input: returns the input that a stored document corresponds to. Default None: its
        fields.
    :param made: the type of the answer to POST, if it has more fields than an item. Default
        None.
    :param is_idempotent: ``Idempotency-Key`` is accepted, bool. Default True.
    """

    name: str
    noun: str
    repository: Repository[I]
    input: type[I]
    item: type[Struct]
    filters: type[Struct]
    orders: Mapping[str, Any]
    limit: int = 50
    id_type: Any
    converter: str
    read: Scope = Scope.READ
    write: Scope = Scope.WRITE
    by_name: NamedRepository | None = None
    as_input: Callable[[Document], Document] | None = None
    made: type[Struct] | None = None
    is_idempotent: bool = True


class Deleted(Struct, frozen=True):
    """How many items were deleted."""

    deleted: int


def add(routes: Routes, resource: Resource[Any]) -> None:
    """
    Add all operations of a resource.

    :param routes: receives them.
    :param resource: its description.
    """
    _Api(routes, resource).add()


class _Api(Generic[I]):
    """The views of one resource."""

    def __init__(self, routes: Routes, resource: Resource[I]) -> None:
        self._routes = routes
        self._resource = resource
        self._repository = resource.repository
        self._input = resource.input
        self._lists = Lists(
            resource.name, resource.filters, resource.orders, resource.limit, resource.id_type
        )
        # The types of bodies and answers, named by the resource, as components of the document.
        kind, ids = resource.name.capitalize(), resource.id_type
        many = Meta(min_length=1, max_length=MAX_BATCH)
        self._batch = _struct(f"{kind}Batch", items=Annotated[list[resource.input], many])  # type: ignore[name-defined]
        different = Meta(extra_json_schema={"uniqueItems": True})
        self._ids = _struct(f"{kind}Ids", ids=Annotated[list[ids], many, different])  # type: ignore[valid-type]
        # A patch is decoded as any object and typed only after it is merged; the document still
        # describes its fields.
        patch = schemas.reference(schemas.patch_name(resource.input.__name__))
        one = msgspec.defstruct(
            f"{kind}Change",
            [
                ("id", ids),
                ("patch", Annotated[dict[str, Any], Meta(extra_json_schema=patch)]),
                ("version", int | None, None),
            ],
            forbid_unknown_fields=True,
        )
        self._patches = _struct(f"{kind}Changes", items=Annotated[list[one], many])  # type: ignore[valid-type]
        item = resource.item
        self._items = _struct(f"{kind}Items", items=list[item])  # type: ignore[valid-type]
        self._made = self._items
        if resource.made is not None:
            self._made = _struct(f"{kind}Made", items=list[resource.made])  # type: ignore[name-defined]
        self._found = _struct(f"{kind}Found", items=list[item], missing=list[ids])  # type: ignore[valid-type]
        self._names = _struct(f"{kind}Names", names=Annotated[list[Name], many, different])
        self._found_named = _struct(f"{kind}Named", items=list[item], missing=list[Name])  # type: ignore[valid-type]
        self._page = msgspec.defstruct(
            f"{kind}Page",
            [
                ("items", list[item]),  # type: ignore[valid-type]
                ("next", str | None),
                ("previous", str | None),
                ("total", int | msgspec.UnsetType, msgspec.UNSET),
            ],
        )

    def add(self) -> None:
        one = self._resource
        noun, name, made = one.noun, one.name, one.made or one.item
        self._route(
            "list",
            "GET",
            "",
            f"List {name}",
            {OK: self._page},
            self.page,
            description=ABOUT_LISTS,
            query=self._lists.query,
            is_list=True,
        )
        self._route(
            "create",
            "POST",
            "",
            f"Create {_with_article(noun)}",
            {CREATED: made},
            self.create,
            body=one.input,
            is_idempotent=one.is_idempotent,
            has_version=True,
        )
        self._route(
            "delete_where",
            "DELETE",
            "",
            f"Delete {name} by field",
            {OK: Deleted},
            self.delete_where,
            query=one.filters,
        )
        self._route(
            "create_many",
            "POST",
            "/batch",
            f"Create many {name}, or none",
            {CREATED: self._made},
            self.create_many,
            body=self._batch,
            is_idempotent=one.is_idempotent,
        )
        self._route(
            "change_many",
            "PATCH",
            "/batch",
            f"Change many {name}, or none",
            {OK: self._items},
            self.change_many,
            body=self._patches,
            errors=frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.PRECONDITION_FAILED}),
        )
        self._route(
            "delete_many",
            "DELETE",
            "/batch",
            f"Delete many {name}, or none",
            {OK: Deleted},
            self.delete_many,
            body=self._ids,
            errors=frozenset({HTTPStatus.NOT_FOUND}),
        )
        self._route(
            "get_many",
            "POST",
            "/batch-get",
            f"Read many {name} by id",
            {OK: self._found},
            self.get_many,
            body=self._ids,
            scope=one.read,
        )
        self._one(f"/<{one.converter}:item_id>", "id", one.id_type)
        if one.by_name is not None:
            self._one("/by-name/<name:item_id>", "name", Name, partial(_id_of, one.by_name.id_of))
            self._named(one.by_name)

    def _named(self, repository: NamedRepository) -> None:
        """Add the operations on several items that are addressed by their names."""
        name = self._resource.name

        def get() -> Response:
            names = self._sent_names()
            found = repository.get_named(names)
            return _found(list(found.values()), [one for one in names if one not in found])

        def delete() -> Response:
            versions.refuse_conditions()
            names = self._sent_names()
            repository.delete_named(names)
            return http.json(Deleted(len(names)))

        self._route(
            "get_many_by_name",
            "POST",
            "/batch-get/by-name",
            f"Read many {name} by name",
            {OK: self._found_named},
            get,
            body=self._names,
            scope=self._resource.read,
        )
        self._route(
            "delete_many_by_name",
            "DELETE",
            "/batch/by-name",
            f"Delete many {name} by name, or none",
            {OK: Deleted},
            delete,
            body=self._names,
            errors=frozenset({HTTPStatus.NOT_FOUND}),
        )

    def _sent_names(self) -> list[str]:
        return self._different(http.body(self._names).names, "/names/{}")

    def _one(
        self, path: str, called: str, type_: Any, id_of: Callable[[str], Any] | None = None
    ) -> None:
        """Add the operations on one item, addressed by its id, or by a name if *id_of* is given."""
        one = self._resource
        noun, item = _with_article(one.noun), one.item
        by, suffix = (" by name", "_by_name") if called == "name" else ("", "")
        route = partial(self._route, id_name=called, id_type=type_, has_version=True)

        def by_id(view: Callable[..., Response]) -> Callable[..., Response]:
            def found(item_id: Any) -> Response:
                if id_of is None:
                    return view(item_id)
                named = id_of(item_id)
                # The id also goes into the ETag: the name may belong to another item later.
                return view(named, named)

            return found

        route(f"get{suffix}", "GET", path, f"Read {noun}{by}", {OK: item}, by_id(self.get))
        route(
            f"replace{suffix}",
            "PUT",
            path,
            f"Replace {noun}{by}",
            {OK: item},
            by_id(self.replace),
            body=one.input,
        )
        route(
            f"change{suffix}",
            "PATCH",
            path,
            f"Change {noun}{by}",
            {OK: item},
            by_id(self.change),
            body=one.input,
            takes_patch=True,
        )
        route(
            f"delete{suffix}",
            "DELETE",
            path,
            f"Delete {noun}{by}",
            {NO_CONTENT: None},
            by_id(self.delete),
        )

    def _route(
        self,
        what: str,
        method: str,
        path: str,
        summary: str,
        answers: Mapping[HTTPStatus, Any],
        view: Callable[..., Response],
        scope: Scope | None = None,
        **more: Any,
    ) -> None:
        one = self._resource
        # Any write may contradict stored items. With an explicit scope it is a read by POST.
        if scope is None and method != "GET":
            more["errors"] = more.get("errors", frozenset()) | {HTTPStatus.CONFLICT}
        scope = scope or (one.read if method == "GET" else one.write)
        operation = Operation(
            f"{one.name}.{what}",
            method,
            f"/{one.name}{path}",
            summary,
            one.name,
            answers,
            scope,
            **more,
        )
        self._routes.add(operation, view)

    def page(self) -> Response:
        asked = self._lists.asked()
        answer = self._lists.stream if accept.prefers_lines() else self._lists.answer
        return answer(asked, self._repository)

    def create(self) -> Response:
        sent = http.body(self._input)
        # "one" and "many" are part of the request's hash: a key that came with a batch is refused
        # here as reused, also for a batch of one.
        [stored] = self._repository.create(
            [sent], idempotency.asked(f"{self._resource.name} one", sent)
        )
        response = versions.answer(stored, CREATED)
        response.headers["Location"] = f"/{self._resource.name}/{stored.id}"
        return response

    def create_many(self) -> Response:
        items = http.body(self._batch).items
        made = self._repository.create(
            items, idempotency.asked(f"{self._resource.name} many", items)
        )
        return _items(made, CREATED)

    def get_many(self) -> Response:
        ids = self._different(http.body(self._ids).ids, "/ids/{}")
        found = self._repository.get_many(ids)
        # Missing items are no error here, unlike in a batch that writes.
        there = {item.id for item in found}
        return _found(found, [item_id for item_id in ids if item_id not in there])

    def get(self, item_id: Any, named: Any = None) -> Response:
        return versions.answer_if_new(self._repository.get(item_id), named)

    def replace(self, item_id: Any, named: Any = None) -> Response:
        # A replacement is an edit that ignores the stored document.
        sent = http.body(self._input)
        change = Change(item_id, lambda _: sent, versions.expected(named))
        [stored] = self._repository.change([change])
        return versions.answer(stored, named=named)

    def change(self, item_id: Any, named: Any = None) -> Response:
        patch = http.body(dict[str, Any])
        edit = self._patched(patch, "")
        [stored] = self._repository.change([Change(item_id, edit, versions.expected(named))])
        return versions.answer(stored, named=named)

    def change_many(self) -> Response:
        versions.refuse_conditions()
        asked = http.body(self._patches).items
        # The version of each item stands in the batch; If-Match has room for one item only.
        self._different([one.id for one in asked], "/items/{}/id")
        changes = [
            Change(
                one.id,
                self._patched(one.patch, f"/items/{index}/patch"),
                None if one.version is None else frozenset([one.version]),
            )
            for index, one in enumerate(asked)
        ]
        return _items(self._repository.change(changes), OK)

    def delete(self, item_id: Any, named: Any = None) -> Response:
        self._repository.delete([item_id], versions.expected(named))
        return http.nothing()

    def delete_many(self) -> Response:
        versions.refuse_conditions()
        ids = self._different(http.body(self._ids).ids, "/ids/{}")
        self._repository.delete(ids)
        return http.json(Deleted(len(ids)))

    def delete_where(self) -> Response:
        versions.refuse_conditions()
        names = self._resource.filters.__struct_fields__
        filters = given(http.query(self._resource.filters), names)
        # Without a filter a mistyped request would delete all items.
        if not filters:
            called = ", ".join(self._resource.filters.__struct_encode_fields__)
            raise InvalidRequest(f"a filter is required: at least one of {called}")
        return http.json(Deleted(self._repository.delete_where(filters)))

    def _patched(self, patch: Document, pointer: str) -> Callable[[Document], I]:
        """Return a function that applies *patch* to a document and returns the valid input."""

        # merged() and msgspec recurse into the patch.
        try:
            require_shallow(patch)
        except ValueError as error:
            raise InvalidRequest(faults=[Fault(str(error), pointer=pointer)]) from error

        # Called by the repository with the current document, in its transaction, possibly again
        # after a conflict.
        def edit(document: Document) -> I:
            as_input = self._resource.as_input or self._fields
            value = merge_patch.merged(as_input(document), patch, self._input)  # type: ignore[arg-type]
            try:
                item = msgspec.convert(value, self._input)
            except msgspec.ValidationError as error:
                wrong = faults.found(value, self._input, pointer)
                raise InvalidRequest(faults=wrong) from error
            # Patches could otherwise grow an item beyond what one request may send.
            max_bytes = request.max_content_length
            if max_bytes is not None and len(msgspec.json.encode(item)) > max_bytes:
                detail = f"with this patch the item has more than {max_bytes} bytes"
                raise InvalidRequest(faults=[Fault(detail, pointer=pointer)])
            return item

        return edit

    def _fields(self, document: Document) -> Document:
        """Return the fields of *document* that a client may send."""
        names = self._input.__struct_fields__  # type: ignore[attr-defined]
        return {name: document[name] for name in names if name in document}

    def _different(self, ids: list[Any], pointer: str) -> list[Any]:
        # A repository may then rely on one change for each item of a batch.
        seen: set[Any] = set()
        wrong = []
        for index, item_id in enumerate(ids):
            if item_id in seen:
                wrong.append(Fault(f"{item_id} is given twice", pointer=pointer.format(index)))
            seen.add(item_id)
        if wrong:
            raise InvalidRequest(faults=wrong)
        return ids


def _id_of(id_of: Callable[[str], Any], name: str) -> Any:
    """Return the id of the item called *name*; text that can be no name is not found."""
    try:
        return id_of(msgspec.convert(name, Name))
    except msgspec.ValidationError as error:
        raise NotFound from error


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeio' else 'a'} {noun}"


def _items(stored: list[Stored], status: HTTPStatus) -> Response:
    return http.json(b'{"items":[%b]}' % b",".join(item.json for item in stored), status)


def _found(items: list[Stored], missing: list[Any]) -> Response:
    there, lacking = b",".join(item.json for item in items), msgspec.json.encode(missing)
    return http.json(b'{"items":[%b],"missing":%b}' % (there, lacking))


def _struct(name: str, **fields: Any) -> Any:
    return msgspec.defstruct(name, list(fields.items()), frozen=True, forbid_unknown_fields=True)

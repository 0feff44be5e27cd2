"""``/products`` over HTTP: what is special about them, the fields that some lack."""

import itertools
from typing import Any

import pytest

from tests.helpers.support import Service

_offers = itertools.count(1)
OPTIONAL = ("description", "imageLink", "brand", "gtin", "mpn")


def new_product(**more: Any) -> dict[str, Any]:
    """Return a product with all that one needs, of an offer that no other test uses."""
    return {
        "offerId": f"test-{next(_offers)}",
        "title": "Kettle",
        "link": "https://shop.example/kettle",
        "price": {"value": "19.90", "currency": "EUR"},
        **more,
    }


def found(api: Service, query: str) -> list[str]:
    """Return the ids of all products that are found so."""
    ids: list[str] = []
    after = ""
    while True:
        page = api.get(f"/products?{query}&limit=100{after}").json
        ids += [item["id"] for item in page["items"]]
        if page["next"] is None:
            return ids
        after = f"&after={page['next']}"


@pytest.mark.parametrize("field", ["brand", "gtin", "mpn", "imageLink"])
def test_to_lack_a_field_is_not_to_have_it_empty(api: Service, field: str) -> None:
    """Each is asked for in its own way, in both orders, and its answer shows which it is."""
    values = {"brand": "Acme", "gtin": "12345678", "mpn": "K-1", "imageLink": "https://x.example/1"}
    with_value, empty, lacking = (
        api.ask("POST", "/products", new_product(**more)).json
        for more in ({field: values[field]}, {field: ""}, {})
    )
    assert (with_value[field], empty[field]) == (values[field], "")
    assert field not in lacking
    for order in ("id", "-id", "offerId", "-offerId"):
        without = found(api, f"lacking={field}&order={order}")
        emptied = found(api, f"{field}=&order={order}")
        assert lacking["id"] in without
        assert empty["id"] in emptied
        assert not {with_value["id"], *emptied} & set(without)
        assert with_value["id"] not in emptied
    assert with_value["id"] in found(api, f"{field}={values[field]}")


@pytest.mark.parametrize("order", ["id", "-id", "offerId", "-offerId"])
def test_a_slug_is_asked_for_by_country_and_with_a_currency(api: Service, order: str) -> None:
    """Missing, empty or with a value; what is of another currency is not found with it."""
    slugs: list[dict[str, str]] = [{"DE": "kessel"}, {"US": ""}, {"US": "kettle"}]
    made = [
        api.ask("POST", "/products", new_product(slug=slug, price={"value": "1", "currency": code}))
        for slug in slugs
        for code in ("EUR", "USD")
    ]
    assert [answer.status for answer in made] == [201] * 6
    ids = [answer.json["id"] for answer in made]
    asked = ("lacking=slug.US", "slug.US=", "slug.US=kettle")
    for number, query in enumerate(asked):
        here = ids[2 * number : 2 * number + 2]
        assert {*found(api, f"{query}&order={order}")} & {*ids} == {*here}
        euros = f"{query}&currency=EUR&order={order}"
        assert {*found(api, euros)} & {*ids} == {here[0]}
        total = api.get(f"/products?{euros}&limit=1&total=true").json["total"]
        assert total == len(found(api, euros))
    assert api.get("/products?lacking=slug.US&slug.US=").json["items"] == []


@pytest.mark.parametrize("query", ["slug.DE=x", "lacking=slug.DE", "slug_US=", "currency=eur"])
def test_a_slug_of_another_country_cannot_be_asked_for(api: Service, query: str) -> None:
    """No index has it; the answer names the parameter as it was sent."""
    answer = api.get(f"/products?{query}")
    assert answer.status == 422
    assert answer.json["errors"][0]["name"] == query.partition("=")[0]


def test_a_null_removes_a_field_and_a_put_without_it_too(api: Service) -> None:
    """It is lacking then; what must be there cannot be removed."""
    sent = new_product(brand="Acme", gtin="", description="It boils")
    path = f"/products/{api.ask('POST', '/products', sent).json['id']}"
    changed = api.ask("PATCH", path, {"brand": None, "slug": {"DE": "kessel"}})
    assert changed.status == 200
    assert "brand" not in changed.json
    assert (changed.json["gtin"], changed.json["slug"]) == ("", {"DE": "kessel"})
    assert api.get(path).body == changed.body
    assert api.ask("PATCH", path, {"slug": {"DE": None, "FR": "bouilloire"}}).json["slug"] == {
        "FR": "bouilloire"
    }
    assert api.ask("PATCH", path, {"title": None}).status == 422
    plain = {name: value for name, value in sent.items() if name not in OPTIONAL}
    replaced = api.ask("PUT", path, plain).json
    assert not {*OPTIONAL} & {*replaced}
    assert (replaced["slug"], replaced["version"]) == ({}, 4)


def test_what_lacks_a_field_can_be_deleted_by_that(api: Service) -> None:
    """Only that, and only together with the other fields that are asked for."""
    brand = f"brand {next(_offers)}"
    for more in ({"gtin": ""}, {}, {}):
        assert api.ask("POST", "/products", new_product(brand=brand, **more)).status == 201
    path = f"/products?brand={brand.replace(' ', '%20')}"
    assert api.ask("DELETE", f"{path}&lacking=gtin").json == {"deleted": 2}
    assert [item["gtin"] for item in api.get(path).json["items"]] == [""]


def test_an_offer_is_one_product(api: Service) -> None:
    """A second one is a conflict, alone and in a batch, of which nothing stays."""
    first, others = new_product(), [new_product(), new_product()]
    assert api.ask("POST", "/products", first).status == 201
    assert api.ask("POST", "/products", first).status == 409
    batch = {"items": [others[0], first, others[1]]}
    assert api.ask("POST", "/products/batch", batch).status == 409
    for other in others:
        assert api.get(f"/products?offerId={other['offerId']}").json["items"] == []


@pytest.mark.parametrize(
    "more",
    [
        {"price": {"value": 19.9, "currency": "EUR"}},
        {"price": {"value": "1e3", "currency": "EUR"}},
        {"price": {"value": "12.5\n", "currency": "EUR"}},
        {"price": {"value": "12.50", "currency": "euro"}},
        {"price": {"value": "12.50"}},
        {"gtin": "123"},
        {"link": "javascript:alert(1)"},
        {"slug": {"Germany": "kessel"}},
        {"slug": {"DE": "x" * 201}},
        {"brand": None},
        {"offerId": ""},
    ],
    ids=[
        "a number", "an exponent", "a newline", "no currency", "half a price", "a short gtin",
        "no web address", "no country", "a long slug", "null", "no offer",
    ],
)  # fmt: skip
def test_a_bad_product_is_a_422(api: Service, more: dict[str, Any]) -> None:
    """Prices are exact, codes are codes, and a field is left out to lack it."""
    assert api.ask("POST", "/products", new_product(**more)).status == 422

"""A missing field and its default value on the embedded server."""

from typing import Any

from pymongo import MongoClient

from bench import plans

CURRENCIES = ("EUR", "USD")


def test_a_missing_field_becomes_its_default(empty_mongo: str) -> None:
    """As many are found each time, and by the index but for ``$exists``."""
    with MongoClient[dict[str, Any]](empty_mongo) as client:
        products = client.get_default_database()["products"]
        for number in range(200):
            slug = {"DE": "a"} if number % 4 < 2 else {"US": "b"}
            price = {"currency": CURRENCIES[number % 2]}
            products.insert_one({"_id": number, "slug": slug, "price": price})
        found = plans.compare(empty_mongo, "products")
    assert [each.how for each in found] == ["count", "page of 50"] * 3
    assert {each.found for each in found} == {50}
    by_index = [each for each in found if "$exists" not in each.asked]
    assert {(each.index, each.keys) for each in by_index} == {("slug.US_1_price.currency_1", 50)}

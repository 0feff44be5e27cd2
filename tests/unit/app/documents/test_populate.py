"""Fake products."""

import bson
import msgspec
from faker import Faker

from app.documents.populate import OPTIONAL, Vocabulary, products
from app.records import ProductInput


def vocabulary(seed: int = 1) -> Vocabulary:
    fake = Faker("en_US")
    fake.seed_instance(seed)
    return Vocabulary.of(fake)


def test_two_runs_are_equal_and_another_seed_is_another_set() -> None:
    """In content and in ids."""
    first = list(products(vocabulary(), 1, 1, 500))
    assert first == list(products(vocabulary(), 1, 1, 500))
    other = list(products(vocabulary(2), 2, 1, 500))
    for name in ("_id", "offerId"):
        seen = [bson.decode(document)[name] for document in [*first, *other]]
        assert len(set(seen)) == 998


def test_a_product_is_one_that_the_service_takes() -> None:
    """Each field as the API would have it; some lack an optional one, some have it empty."""
    found = [bson.decode(document) for document in products(vocabulary(), 1, 1, 500)]
    for document in found:
        kept = {name: value for name, value in document.items() if name in fields()}
        msgspec.convert(kept, ProductInput)
    for name in OPTIONAL:
        assert {True, False} == {name in document for document in found}
        assert any(document.get(name) == "" for document in found)
    assert {True, False} == {"US" in document["slug"] for document in found}


def fields() -> set[str]:
    return set(ProductInput.__struct_fields__)

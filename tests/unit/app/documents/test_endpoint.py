"""The notation of a collection anywhere."""

import pytest
from pymongo.write_concern import WriteConcern

from app.documents.endpoint import CollectionAddress, acknowledged, parse
from greenline.errors import ConfigError

OWN = "mongodb://own:27017/shop?replicaSet=r"


def parsed(text: str, own: str = OWN) -> CollectionAddress:
    return parse(text, lambda: (own, {}))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mongodb://h/shop.products", "mongodb://h/shop.products"),
        ("mongodb://u:s3cret@b:1,a/shop.pro.ducts?w=1", "mongodb://a,b:1/shop.pro.ducts"),
        ("mongodb://h/sh%40p.products", "mongodb://h/sh@p.products"),
        ("products", "mongodb://own:27017/shop.products"),
        ("other.products", "mongodb://own:27017/other.products"),
        ("other.pro.ducts", "mongodb://own:27017/other.pro.ducts"),
    ],
)
def test_a_place_has_a_server_a_database_and_a_collection(text: str, name: str) -> None:
    """And a name without the password."""
    place = parsed(text)
    assert str(place) == name
    assert "s3cret" not in f"{place} {place!r}"


def test_the_services_database_may_have_no_name() -> None:
    """As the service itself takes it."""
    assert str(parsed("products", "mongodb://own")) == "mongodb://own/greenline.products"


@pytest.mark.parametrize(
    "text",
    ["", ".", ".products", "shop.", "mongodb://h", "mongodb://h/shop", "mongodb://h/shop.",
     "mongodb://h/.products", "postgresql://h/shop.products", "mongodb://u:s3cret@h/shop"],
)  # fmt: skip
def test_what_names_no_collection_is_refused(text: str) -> None:
    """In one line, without the password."""
    with pytest.raises(ConfigError) as raised:
        parsed(text)
    assert "s3cret" not in str(raised.value)


def test_what_is_not_confirmed_is_not_relied_on() -> None:
    """A URI's w=0 would let the checkpoint run ahead of what is written."""
    assert acknowledged(WriteConcern(0)).acknowledged
    assert acknowledged(WriteConcern("majority")) == WriteConcern("majority")

"""
Generate any number of fake products, reproducibly from a seed.

The words are taken from Faker once: asking it for each field would take a hundred times as long.
"""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event
from typing import Any

import bson
from bson import ObjectId

from app.documents.batches import Batch, DocumentBatches
from app.documents.checkpoint import Progress
from app.documents.copy import added
from app.documents.endpoint import CollectionEndpoint
from app.documents.reading import BATCH
from app.documents.throttle import Throttle
from app.documents.transform import Prepared
from app.documents.writing import Writer
from greenline.errors import Conflict

CURRENCIES = ("EUR", "GBP", "USD")
COUNTRIES = ("DE", "FR", "GB", "US")
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
OPTIONAL = ("description", "imageLink", "brand", "gtin", "mpn")
WORDS, COLORS, BRANDS, SENTENCES = 500, 100, 300, 500
MAX_SEED = 2**32 - 1


@dataclass(frozen=True)
class Vocabulary:
    """
    The words of which products are made.

    :param words: the words of a title.
    :param colors: names of colors.
    :param brands: names of companies.
    :param sentences: of a description.
    """

    words: list[str]
    colors: list[str]
    brands: list[str]
    sentences: list[str]

    @classmethod
    def of(cls, fake: Any) -> "Vocabulary":
        """Return a vocabulary from *fake*, a seeded Faker."""
        return cls(
            [fake.word() for _ in range(WORDS)],
            [fake.color_name() for _ in range(COLORS)],
            [fake.last_name() for _ in range(BRANDS)],
            [fake.sentence(nb_words=12) for _ in range(SENTENCES)],
        )


def products(vocabulary: Vocabulary, seed: int, begin: int, end: int) -> Iterator[bytes]:
    """
    Yield products as raw BSON.

    Each optional field is missing or empty in about a third of them, as in the sample data.

    :param vocabulary: their words.
    :param seed: 0 to ``MAX_SEED``; another seed gives other products with other ids.
    :param begin: number of the first product, int.
    :param end: number after that of the last product, int.
    """
    # A generator for each batch: its products do not depend on which batch is made first.
    chance = random.Random(seed << 64 | begin)  # noqa: S311
    for number in range(begin, end):
        yield bson.encode(_product(vocabulary, chance, seed, number))


def populate(
    target: CollectionEndpoint,
    vocabulary: Vocabulary,
    count: int,
    seed: int,
    batches_at_once: int,
    stopping: Event,
    on_progress: Any,
) -> int:
    """
    Write products; those of an earlier run with the same seed are left unchanged.

    :param target: the collection.
    :param vocabulary: the products' words.
    :param count: products, int.
    :param seed: 0 to ``MAX_SEED``.
    :param batches_at_once: batches that are written at a time, int.
    :param stopping: set it to stop early.
    :param on_progress: called with the number of products written so far, int.
    :returns: the number of products that are in the target.
    :raises GreenlineError: the target is unreachable for too long or refuses, or has other
        documents with these ids.
    """
    throttle = Throttle(None, stopping)
    writer = Writer(target, throttle, stopping)
    done = Progress()

    def write(prepared: Prepared, batch: Batch) -> None:
        failures = writer.write(prepared)
        if failures:
            raise Conflict(f"{target.name}: {failures[0].reason}")
        # Documents of an earlier run count: the writer has compared them.
        batch.copied = len(prepared.documents)

    def count_batch(batch: Batch) -> None:
        nonlocal done
        done = added(done, batch)
        on_progress(done.copied)

    batches = DocumentBatches(batches_at_once, stopping, count_batch)
    try:
        for begin in range(1, count + 1, BATCH):
            throttle.wait(BATCH)
            if stopping.is_set():
                break
            # Made in this thread: they are Python objects, so several threads would not be faster.
            made = list(products(vocabulary, seed, begin, min(begin + BATCH, count + 1)))
            work = partial(write, Prepared(made, made))
            batches.submit(Batch(), sum(map(len, made)), work)
    finally:
        batches.finish()
    return done.copied


def _product(vocabulary: Vocabulary, chance: random.Random, seed: int, number: int) -> Any:
    pick = chance.choice
    word = pick(vocabulary.words)
    moment = BEGINNING + timedelta(seconds=number)
    first, second = chance.sample(COUNTRIES, 2)
    slug = f"{word}-{number}"
    product: dict[str, Any] = {
        # From the seed and the number: a repeated run writes the same ids.
        "_id": ObjectId(struct.pack(">IQ", seed, number)),
        "offerId": f"offer-{seed}-{number:07d}",
        "title": f"{pick(vocabulary.colors)} {pick(vocabulary.words)}",
        "description": pick(vocabulary.sentences),
        "link": f"https://shop.example/{number}",
        "imageLink": f"https://shop.example/{number}.jpg",
        "price": {
            "value": f"{chance.randint(1, 500)}.{chance.randint(0, 99):02d}",
            "currency": pick(CURRENCIES),
        },
        "brand": pick(vocabulary.brands),
        "gtin": f"{chance.randrange(10**12, 10**13)}",
        "mpn": f"{word.upper()}-{chance.randint(100, 999)}",
        "slug": {first: slug, second: slug},
        "created_at": moment,
        "updated_at": moment,
        "version": 1,
    }
    for name in OPTIONAL:
        match chance.randrange(6):
            case 0:
                del product[name]
            case 1:
                product[name] = ""
    return product

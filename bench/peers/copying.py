"""
Copy a collection within a database as a script does, each in its best form.

1. ``sequence``: batches by ``_id``, read and written one after the other (no. 4's first script).
2. ``gather``: ten batches are read, then written at once, then the next ten (its second script).
   As Motor does, pymongo's blocking client works in threads, and the loop is uvloop's.
3. ``asyncio``: pymongo's own asyncio client on uvloop; one cursor reads on while ten batches at
   most are written, unordered.
4. ``import``: a file of Extended JSON, a batch at a time, as mongoimport does with one worker.

The copies have new ids. The last line says how many documents were copied in how many seconds.

    python -m bench.peers.copying WHO MONGODB_URI SOURCE TARGET
"""

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import uvloop
from bson import ObjectId, json_util
from pymongo import AsyncMongoClient, MongoClient
from pymongo.collection import Collection

BATCH, AT_ONCE = 1_000, 10
Document = dict[str, Any]
Documents = Collection[Document]


def pages(source: Documents) -> Iterator[list[Document]]:
    """Yield the documents in the order of their ids, asking for each batch by the last id."""
    asked: Document = {}
    while batch := source.find(asked, sort={"_id": 1}, limit=BATCH, batch_size=BATCH).to_list():
        asked = {"_id": {"$gt": batch[-1]["_id"]}}
        yield batch


def renewed(batch: list[Document]) -> list[Document]:
    """Give each document a new id."""
    for document in batch:
        document["_id"] = ObjectId()
    return batch


def in_sequence(uri: str, source: str, target: str) -> int:
    """Read a batch, write it, go on to the next."""
    with MongoClient[Document](uri) as client:
        database = client.get_default_database()
        return sum(_written(database[target], batch) for batch in _renewed(database[source]))


def by_gather(uri: str, source: str, target: str) -> int:
    """Read ten batches and write them at once."""
    return uvloop.run(_by_gather(uri, source, target))


async def _by_gather(uri: str, source: str, target: str) -> int:
    loop, done = asyncio.get_running_loop(), 0
    with MongoClient[Document](uri) as client, ThreadPoolExecutor(AT_ONCE) as threads:
        database = client.get_default_database()
        batches = _renewed(database[source])
        write = partial(_written, database[target])
        while wave := await loop.run_in_executor(threads, list, islice(batches, AT_ONCE)):
            written = (loop.run_in_executor(threads, write, batch) for batch in wave)
            done += sum(await asyncio.gather(*written))
    return done


def by_asyncio(uri: str, source: str, target: str) -> int:
    """Read on while ten batches are written."""
    return uvloop.run(_by_asyncio(uri, source, target))


async def _by_asyncio(uri: str, source: str, target: str) -> int:
    done, room = 0, asyncio.Semaphore(AT_ONCE)

    async def write(batch: list[Document]) -> None:
        try:
            await database[target].insert_many(batch, ordered=False)
        finally:
            room.release()

    async with AsyncMongoClient[Document](uri) as client, asyncio.TaskGroup() as tasks:
        database = client.get_default_database()
        async with database[source].find(sort={"_id": 1}, batch_size=BATCH) as cursor:
            while batch := await cursor.to_list(BATCH):
                await room.acquire()
                tasks.create_task(write(renewed(batch)))
                done += len(batch)
    return done


def from_file(uri: str, source: str, target: str) -> int:
    """Insert the lines of a file."""
    with MongoClient[Document](uri) as client, Path(source).open() as lines:
        documents = map(json_util.loads, lines)
        collection = client.get_default_database()[target]
        return sum(_written(collection, batch) for batch in _batches(documents))


def _renewed(source: Documents) -> Iterator[list[Document]]:
    return map(renewed, pages(source))


def _written(target: Documents, batch: list[Document]) -> int:
    target.insert_many(batch)
    return len(batch)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    every = iter(documents)
    return iter(lambda: list(islice(every, BATCH)), [])


COPIES = {
    "sequence": in_sequence,
    "gather": by_gather,
    "asyncio": by_asyncio,
    "import": from_file,
}


def main() -> None:
    """Copy, and say how it went."""
    who, *places = sys.argv[1:]
    begin_s = monotonic()
    copied = COPIES[who](*places)
    print(json.dumps({"event": "end", "seconds": monotonic() - begin_s, "copied": copied}))


if __name__ == "__main__":
    main()

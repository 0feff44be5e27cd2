"""
A server that speaks MongoDB's protocol and keeps no documents: it makes them when they are read.

For what no server at hand does: millions of documents in a second's time, and BSON that cannot be
decoded, which other servers than mongod refuse. ``source`` has documents of the numbers from 0 on;
of ``target`` it keeps which numbers were written, and that each is what the source has. Everything
else is a collection of a few documents, by equality of fields.

``python -m tests.integration.app.documents.generated COUNT`` prints its port.
"""

import socketserver
import struct
import sys
from itertools import count, islice
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument

from app.documents import ids
from app.documents.ids import RAW

BROKEN = 7  # each of so many is no UTF-8, and the next one has a name twice
HELLO = {
    "isWritablePrimary": True, "maxBsonObjectSize": 16 * 1024 * 1024, "maxWireVersion": 25,
    "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000, "minWireVersion": 0,
}  # fmt: skip


def document(number: int) -> bytes:
    """Return the document of this *number*: about 500 bytes, some of which cannot be decoded."""
    made = bson.encode({"_id": number, "a": "ab", "b": 2, "text": "x" * 450})
    if number % BROKEN == 0:
        return made.replace(b"ab\0", b"\xff\xfe\0", 1)
    if number % BROKEN == 1:
        return made.replace(b"\x10b\0", b"\x10a\0", 1)
    return made


class State:
    """What is written."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.written = bytearray(size)
        self.twice = 0
        self.wrong = 0
        self.cursors: dict[int, tuple[Any, int]] = {}
        self.numbers = count(1)
        self.others: dict[str, list[dict[str, Any]]] = {}

    def answer(self, asked: dict[str, Any], documents: list[bytes]) -> dict[str, Any]:
        name = next(iter(asked))
        command = getattr(self, f"do_{name.lower()}", None)
        return {**(command(asked, documents) if command else {}), "ok": 1.0}

    def do_hello(self, *_: Any) -> dict[str, Any]:
        return HELLO

    do_ismaster = do_hello

    def do_listcollections(self, *_: Any) -> dict[str, Any]:
        found = [{"name": name, "type": "collection"} for name in ("source", "target")]
        return {"cursor": {"id": 0, "ns": "d.$cmd.listCollections", "firstBatch": found}}

    def do_count(self, *_: Any) -> dict[str, Any]:
        return {"n": self.size}

    def do_insert(self, asked: dict[str, Any], documents: list[bytes]) -> dict[str, Any]:
        if asked["insert"] != "target":
            self._others(asked["insert"]).extend(map(bson.decode, documents))
            return {"n": len(documents)}
        for raw in documents:
            number = ids.value_of(ids.id_of(raw) or b"")
            self.twice += self.written[number]
            self.wrong += raw != document(number)
            self.written[number] = 1
        return {"n": len(documents)}

    def do_update(self, asked: dict[str, Any], documents: list[bytes]) -> dict[str, Any]:
        changed = 0
        for update in map(bson.decode, documents):
            for found in self._matching(asked["update"], update["q"]):
                found.update(update["u"].get("$set", {}))
                changed += 1
        return {"n": changed, "nModified": changed}

    def do_delete(self, asked: dict[str, Any], documents: list[bytes]) -> dict[str, Any]:
        gone = [
            found
            for delete in map(bson.decode, documents)
            for found in self._matching(asked["delete"], delete["q"])
        ]
        others = self._others(asked["delete"])
        others[:] = [one for one in others if one not in gone]
        return {"n": len(gone)}

    def do_find(self, asked: dict[str, Any], _: Any) -> dict[str, Any]:
        name = asked["find"]
        if name not in ("source", "target"):
            found = self._matching(name, asked.get("filter", {}))
            return {"cursor": {"id": 0, "ns": f"d.{name}", "firstBatch": found}}
        numbers = range(
            asked.get("min", {"_id": 0})["_id"], asked.get("max", {"_id": self.size})["_id"]
        )
        wanted = (n for n in numbers if name == "source" or self.written[n])
        cursor = next(self.numbers)
        self.cursors[cursor] = wanted, asked["batchSize"]
        return self._batch(cursor, "firstBatch", name)

    def do_getmore(self, asked: dict[str, Any], _: Any) -> dict[str, Any]:
        return self._batch(asked["getMore"], "nextBatch", asked["collection"])

    def do_status(self, *_: Any) -> dict[str, Any]:
        return {"written": sum(self.written), "twice": self.twice, "wrong": self.wrong}

    def _batch(self, cursor: int, key: str, name: str) -> dict[str, Any]:
        numbers, size = self.cursors[cursor]
        found = [RawBSONDocument(document(number), RAW) for number in islice(numbers, size)]
        last = len(found) < size
        if last:
            del self.cursors[cursor]
        return {"cursor": {"id": bson.Int64(0 if last else cursor), "ns": f"d.{name}", key: found}}

    def _others(self, name: str) -> list[dict[str, Any]]:
        return self.others.setdefault(name, [])

    def _matching(self, name: str, query: dict[str, Any]) -> list[dict[str, Any]]:
        def has(found: Any, path: str, value: Any) -> bool:
            for part in path.split("."):
                found = (found or {}).get(part)
            return bool(found == value)

        return [
            found
            for found in self._others(name)
            if all(has(found, path, value) for path, value in query.items())
        ]


class Handler(socketserver.StreamRequestHandler):
    """One connection."""

    def handle(self) -> None:
        while head := self.rfile.read(16):
            length, request, _, code = struct.unpack("<iiii", head)
            body = self.rfile.read(length - 16)
            if code == 2004:  # OP_QUERY, of the first hello
                reply = bson.encode({**HELLO, "helloOk": True, "ok": 1.0})
                payload = struct.pack("<iqii", 8, 0, 0, 1) + reply
                code = 1
            else:
                payload = b"\0\0\0\0\0" + self._answer(body)
            size = 16 + len(payload)
            self.wfile.write(struct.pack("<iiii", size, 0, request, code) + payload)

    def _answer(self, body: bytes) -> bytes:
        position, asked, documents = 4, {}, []
        while position < len(body):
            kind, size = body[position], int.from_bytes(body[position + 1 : position + 5], "little")
            section = body[position + 1 : position + 1 + size]
            if kind == 0:
                asked = bson.decode(section)
            else:
                documents = ids.split(section[section.index(0, 4) + 1 :])
            position += 1 + size
        state: State = self.server.state  # type: ignore[attr-defined]
        return bson.encode(state.answer(asked, documents))


class Server(socketserver.ThreadingTCPServer):
    """All connections, on a free port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, size: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.state = State(size)


if __name__ == "__main__":
    with Server(int(sys.argv[1])) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()

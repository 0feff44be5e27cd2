"""
Ask for a missing field and for its default value, and tell how the server finds them (no. 4).

1. The filter has two fields, with the compound index (slug.US, price.currency). What lacks the slug
   is asked for by ``$exists``, as the source does, and by null, as the API does; then the same
   products have an empty slug instead, and that is asked for.
2. Each is counted, and read as a first page of PAGE; a time is the middle one of TIMES.
3. The plan is the server's ``explain``: its stages, its index, and what it looked at.
"""

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from pymongo import ASCENDING, MongoClient
from pymongo.collection import Collection

from bench import report

PAGE, TIMES, PATIENCE_MS = 50, 5, 120_000
INDEX = [("slug.US", ASCENDING), ("price.currency", ASCENDING)]
EUR = {"price.currency": "EUR"}
MISSING: dict[str, dict[str, Any]] = {
    "missing, $exists": {"slug.US": {"$exists": False}, **EUR},
    "missing, null": {"slug.US": None, **EUR},
}
DEFAULT: dict[str, dict[str, Any]] = {"default": {"slug.US": "", **EUR}}
Documents = Collection[dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """How a filter is served, counted or as a page, and in what time."""

    asked: str
    how: str
    found: int
    ms: float
    stages: str
    index: str
    keys: int
    documents: int


def compare(uri: str, name: str) -> list[Plan]:
    """Ask the collection *name* for what lacks the slug, set its default, and ask for that."""
    print("a missing field, and its default value", file=sys.stderr, flush=True)
    # An engine of one interpreter answers no heartbeat while it builds an index.
    with MongoClient[dict[str, Any]](uri, connectTimeoutMS=PATIENCE_MS) as client:
        documents = client.get_default_database()[name]
        documents.create_index(INDEX)
        missing = list(plans(documents, MISSING))
        documents.update_many({"slug.US": None}, {"$set": {"slug.US": ""}})
        return [*missing, *plans(documents, DEFAULT)]


def plans(documents: Documents, asked: Mapping[str, dict[str, Any]]) -> Iterator[Plan]:
    """Yield how each filter of *asked* is served."""
    for name, filter_ in asked.items():
        count = {"aggregate": documents.name, "pipeline": counted(filter_), "cursor": {}}
        yield plan(documents, name, "count", count, lambda f=filter_: documents.count_documents(f))
        page = {"find": documents.name, "filter": filter_, "limit": PAGE}
        yield plan(
            documents, name, f"page of {PAGE}", page,
            lambda f=filter_: len(documents.find(f, limit=PAGE).to_list()),
        )  # fmt: skip


def counted(filter_: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a driver counts documents by."""
    return [{"$match": filter_}, {"$group": {"_id": 1, "n": {"$sum": 1}}}]


def plan(
    documents: Documents, asked: str, how: str, command: Mapping[str, Any], ask: Callable[[], int]
) -> Plan:
    """Time *ask*, and have the server explain the *command* that it sends."""
    times = []
    for _ in range(TIMES):
        begin_s = perf_counter()
        found = ask()
        times.append(perf_counter() - begin_s)
    reply = documents.database.command("explain", command, verbosity="executionStats")
    stages = list(stages_of(explained(reply)["queryPlanner"]["winningPlan"]))
    stats = explained(reply)["executionStats"]
    index = next((each["indexName"] for each in stages if "indexName" in each), "")
    return Plan(
        asked, how, found, round(statistics.median(times) * 1_000, 2),
        " < ".join(each["stage"] for each in stages), index,
        stats["totalKeysExamined"], stats["totalDocsExamined"],
    )  # fmt: skip


def explained(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return where an answer of explain has the plan: an aggregate's may be within a stage."""
    if "queryPlanner" in reply:
        return reply
    found: Mapping[str, Any] = reply["stages"][0]["$cursor"]
    return found


def stages_of(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the stages of a plan, the outermost first."""
    plan = plan.get("queryPlan", plan)  # of mongod's other engine
    while plan:
        yield plan
        plan = plan.get("inputStage", {})


def table(found: Sequence[Plan]) -> str:
    """Return *found* as lines of text."""
    names = ["slug.US", "how", "found", "ms", "keys", "documents", "index", "stages"]
    lines = [names]
    for each in found:
        figures = [each.asked, each.how, each.found, each.ms, each.keys, each.documents]
        lines.append([str(figure) for figure in [*figures, each.index or "none", each.stages]])
    return report.aligned(lines, names=2)

"""app.store.collections on a real server: batches, changes at once, writes that happen once."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import gevent
import msgspec
import pytest
from bson import ObjectId
from gevent.event import Event

from app.errors import IdempotencyKeyInProgress, IdempotencyKeyReused, NotFound, PreconditionFailed
from app.records import MessageInput, StateInput
from app.store import idempotency_in_documents
from app.store.indexes import ensure
from app.store.messages import Messages
from app.store.ports import Change, Document, Idempotency, Listing, Page, Position, Stored
from app.store.states import States
from greenline.errors import Conflict, DeadlineExceeded, OutcomeUnknown, StoreDown
from greenline.hub import deadline
from greenline.mongo import apart
from greenline.mongo.client import Mongo
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until
from tests.integration.conftest import Connect, on_both_engines

pytestmark = on_both_engines
KEY = Idempotency("me states k", b"request")


@pytest.fixture
def client(connect: Connect) -> Mongo:
    """A client of a new database, that knows what its server can do."""
    made = connect(20, "serverSelectionTimeoutMS=1000")
    made.capabilities()  # asked before anything is lost
    return made


@pytest.fixture
def states(client: Mongo) -> States:
    """The repository, with its indexes."""
    lend = partial(client.database, repeatable=True)
    assert [ensure(lend, "states", index) for index in States.indexes] == [None] * len(
        States.indexes
    )
    return States(client)


def state(agent_id: int, **data: Any) -> StateInput:
    return StateInput(1, agent_id, data)


def ids(stored: list[Stored]) -> list[str]:
    return [str(item.id) for item in stored]


def shown_ids(page: Page) -> list[str]:
    return [json.loads(item)["id"] for item in page.items]


def everything(client: Mongo, collection: str = "states") -> list[Document]:
    return client.read(lambda database: list(database[collection].find(sort=[("_id", 1)])))


def put(**data: Any) -> Callable[[Document], StateInput]:
    """Return the edit that adds *data* to a state's."""
    return lambda now: StateInput(now["task_id"], now["agent_id"], {**now["data"], **data})


def onto(agent_id: int) -> Callable[[Document], StateInput]:
    """Return the edit that gives a state to another agent."""
    return lambda now: StateInput(now["task_id"], agent_id, now["data"])


def test_changes_of_one_item_at_once_are_all_made(states: States) -> None:
    """Each is made on what the one before it left; none is lost."""
    [made] = states.create([state(1)])
    edits = [put(**{f"n{number}": number}) for number in range(15)]
    changing = [gevent.spawn(states.change, [Change(made.id, edit)]) for edit in edits]
    gevent.joinall(changing, raise_error=True)
    now = states.get(str(made.id))
    assert msgspec.json.decode(now.json)["data"] == {f"n{number}": number for number in range(15)}
    assert now.version == 16
    assert sorted(one.value[0].version for one in changing) == list(range(2, 17))


@pytest.mark.parametrize("what", ["change", "delete"])
def test_of_those_who_want_one_version_one_gets_it(states: States, what: str) -> None:
    """All others get that it has another version now, or that it is gone."""
    for agent_id in range(1, 6):
        [made] = states.create([state(agent_id)])
        wanted = Change(made.id, put(x=1), frozenset({1}))
        work = {
            "change": partial(states.change, [wanted]),
            "delete": partial(states.delete, [str(made.id)], frozenset({1})),
        }[what]
        expected = gevent.joinall([gevent.spawn(outcome, work) for _ in range(6)])
        lost = {"change": PreconditionFailed, "delete": NotFound}[what]
        assert sorted(str(one.value) for one in expected) == sorted([str(lost)] * 5 + ["None"])


def require_emulation(client: Mongo) -> None:
    if client.capabilities().has_transactions:
        pytest.skip("a transaction is not undone, and the driver repeats the write by itself")


def outcome(work: Callable[[], object]) -> type[Exception] | None:
    """Return the kind of error that *work* ends in."""
    try:
        work()
    except Exception as error:
        return type(error)
    return None


def test_a_batch_that_is_refused_in_the_middle_leaves_nothing(
    states: States, client: Mongo
) -> None:
    """What was inserted before the duplicate is gone again, what was there is not."""
    states.create([state(3)])
    before = everything(client)
    with pytest.raises(Conflict):
        states.create([state(number) for number in (1, 2, 3, 4)])
    assert everything(client) == before


def test_a_batch_of_changes_that_is_refused_in_the_middle_changes_nothing(
    states: States, client: Mongo
) -> None:
    """What was replaced before the duplicate is as it was, its version too."""
    made = states.create([state(number) for number in (1, 2, 3, 4)])
    before = everything(client)
    edits = [put(x=1), put(x=2), onto(4), put(x=3)]
    with pytest.raises(Conflict):
        states.change([Change(one.id, edit) for one, edit in zip(made, edits, strict=True)])
    assert everything(client) == before


def test_a_batch_of_changes_is_checked_before_anything_is_written(
    states: States, client: Mongo, mongo_proxy: Proxy
) -> None:
    """A missing item, and one of another version, are errors without any write."""
    made = states.create([state(number) for number in (1, 2)])
    before = everything(client)
    there = Change(made[0].id, put(x=1))
    with pytest.raises(NotFound) as caught:
        states.change([there, Change("0" * 24, put())])
    assert caught.value.missing == ("0" * 24,)
    with pytest.raises(PreconditionFailed):
        states.change([there, Change(made[1].id, put(), frozenset({7}))])
    with pytest.raises(NotFound) as caught:
        states.delete([str(made[0].id), "0" * 24])
    assert caught.value.missing == ("0" * 24,)
    assert everything(client) == before


def test_a_batch_whose_answer_was_lost_is_written_once(
    states: States, client: Mongo, mongo_proxy: Proxy
) -> None:
    """It is looked what has arrived, and the rest is written."""
    mongo_proxy.lose(b"insert")
    made = states.create([state(number) for number in (1, 2, 3)])
    assert [str(document["_id"]) for document in everything(client)] == ids(made)


def test_a_change_whose_answer_was_lost_is_made_once(states: States, mongo_proxy: Proxy) -> None:
    """What is there is ours: it counts as done, and its version is the next one."""
    [made] = states.create([state(1)])
    mongo_proxy.lose(b"update")
    [changed] = states.change([Change(made.id, put(x=1), frozenset({1}))])
    assert (changed.version, states.get(str(made.id))) == (2, changed)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [(frozenset({1}), OutcomeUnknown), (None, None)],
    ids=["of a version", "of any"],
)
def test_a_lost_change_on_which_others_built_is_of_unknown_outcome(
    states: States,
    client: Mongo,
    mongo_proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    versions: frozenset[int] | None,
    expected: type[Exception] | None,
) -> None:
    """A request with a version gets an unknown outcome; one without is served."""
    require_emulation(client)
    [made] = states.create([state(1)])
    theirs = [{"$set": {"version": 9}}]

    def meanwhile(pause_s: float) -> None:
        if theirs:
            client.update("states", ObjectId(str(made.id)), theirs.pop())
        gevent.sleep(pause_s)

    monkeypatch.setattr("tenacity.nap.time.sleep", meanwhile)
    mongo_proxy.lose(b"update")
    assert outcome(lambda: states.change([Change(made.id, put(x=1), versions)])) is expected
    assert states.get(str(made.id)).version == (9 if expected else 10)


def test_a_delete_of_a_version_whose_answer_was_lost_is_done(
    states: States, client: Mongo, mongo_proxy: Proxy
) -> None:
    """It is gone, as was asked."""
    [made] = states.create([state(1)])
    mongo_proxy.lose(b"states")
    states.delete([str(made.id)], frozenset({1}))
    [made] = states.create([state(1)])
    mongo_proxy.lose(b"delete")
    states.delete([str(made.id)], frozenset({1}))
    assert everything(client) == []


def test_a_batch_that_cannot_be_undone_is_of_unknown_outcome(
    states: States, client: Mongo, mongo_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes away in the middle of it, and does not come back in time."""
    require_emulation(client)
    made = states.create([state(number) for number in (1, 2, 3)])
    monkeypatch.setattr(apart, "LIMIT_S", 1.0)

    def meanwhile(pause_s: float) -> None:
        mongo_proxy.refuse()
        gevent.sleep(pause_s)

    monkeypatch.setattr("tenacity.nap.time.sleep", meanwhile)
    mongo_proxy.lose(b"the second")
    edits = [put(x="the first"), put(x="the second"), put(x="the third")]
    with pytest.raises(OutcomeUnknown) as caught:
        states.change([Change(one.id, edit) for one, edit in zip(made, edits, strict=True)])
    assert isinstance(caught.value.__cause__, StoreDown)
    assert "could not be undone" in str(caught.value)


def test_batches_of_changes_at_once_are_all_made(states: States) -> None:
    """They touch different items, and soon end."""
    made = [states.create([state(100 * n + m) for m in range(50)]) for n in range(8)]
    batches = [[Change(one.id, put(x=1)) for one in many] for many in made]
    with deadline.limit(20):
        changing = [gevent.spawn(states.change, batch) for batch in batches]
        gevent.joinall(changing, raise_error=True)
    for many in made:
        assert {one.version for one in states.get_many(ids(many))} == {2}


def test_a_large_batch_of_changes_is_taken_back(states: States, client: Mongo) -> None:
    """The last one is refused: all are as they were."""
    made = states.create([state(number) for number in range(1, 301)])
    before = everything(client)
    changes = [Change(one.id, put(x=1)) for one in made]
    changes[-1] = Change(made[-1].id, onto(1))
    with pytest.raises(Conflict):
        states.change(changes)
    assert everything(client) == before


def test_a_batch_of_changes_is_undone_in_time(
    states: States, client: Mongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline passes when all is written: half of it was kept for the undo."""
    require_emulation(client)
    made = states.create([state(number) for number in range(1, 31)])
    before = everything(client)
    replace, calls = client._replace_left, []

    def slow(*args: Any) -> None:
        replace(*args)
        calls.append(args)
        if len(calls) == 1:
            gevent.sleep(3)
            raise DeadlineExceeded

    monkeypatch.setattr(client, "_replace_left", slow)
    with pytest.raises(DeadlineExceeded), deadline.limit(5):
        states.change([Change(one.id, put(x=1)) for one in made])
    assert everything(client) == before


def test_an_undo_that_is_interrupted_is_of_unknown_outcome(
    states: States, client: Mongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on, but its outcome is unknown."""
    require_emulation(client)
    made = states.create([state(number) for number in (1, 2, 3)])
    changes = [Change(made[0].id, put(x=1)), Change(made[1].id, onto(3))]
    undo = client._swap_back

    def slow(*args: Any) -> None:
        gevent.sleep(2)
        undo(*args)

    monkeypatch.setattr(client, "_swap_back", slow)
    with pytest.raises(OutcomeUnknown, match="is being undone"), deadline.limit(1):
        states.change(changes)
    wait_until(lambda: {one["version"] for one in everything(client)} == {1}, "the undoing")


def test_a_server_that_was_away_from_the_beginning_is_an_outage(
    connect: Connect, mongo_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent, so nothing has to be undone: the same may be asked again."""
    monkeypatch.setattr(apart, "LIMIT_S", 0.5)
    client = connect(5, "serverSelectionTimeoutMS=300")
    client.capabilities()
    mongo_proxy.refuse()
    states = States(client)
    outcome(lambda: states.create([state(1), state(2)]))  # over a connection that was there
    with pytest.raises(StoreDown):
        states.create([state(1), state(2)])


def test_what_was_stored_before_there_were_versions_has_the_first(
    states: States, client: Mongo
) -> None:
    """It can be changed, by that version too."""
    [made] = states.create([state(1)])
    client.update("states", ObjectId(str(made.id)), {"$unset": {"version": ""}})
    assert states.get(str(made.id)).version == 1
    [changed] = states.change([Change(made.id, put(x=1), frozenset({1}))])
    assert changed.version == 2


def test_the_same_again_gets_the_first_answer(states: States, client: Mongo) -> None:
    """Alone and in a batch, also when it was changed since; nothing is stored twice."""
    for items, key in (([state(1)], KEY), ([state(2), state(3)], Idempotency("k2", b"r"))):
        first = states.create(items, key)
        states.change([Change(first[0].id, put(x=1))])
        assert states.create(items, key) == first
    assert len(everything(client)) == 3


def test_what_was_deleted_since_is_made_again(states: States) -> None:
    """The key goes with the document; of a batch only what is missing is made."""
    [first] = states.create([state(1)], KEY)
    states.delete([str(first.id)])
    assert states.create([state(1)], KEY)[0].id != first.id


def test_another_request_with_the_key_is_refused(states: States, client: Mongo) -> None:
    """Alone and in a batch; nothing is stored."""
    states.create([state(1)], KEY)
    for items in ([state(2)], [state(3), state(4)]):
        with pytest.raises(IdempotencyKeyReused):
            states.create(items, Idempotency(KEY.key, b"another"))
    assert len(everything(client)) == 1


def test_a_contradiction_is_reported_with_a_key_too(states: States, client: Mongo) -> None:
    """A duplicate that is not the key's own; and the key is still free afterwards."""
    states.create([state(1)])
    for items in ([state(1)], [state(2), state(1)]):
        with pytest.raises(Conflict):
            states.create(items, KEY)
    assert len(everything(client)) == 1
    states.create([state(2)], KEY)


def age(client: Mongo, by: timedelta) -> None:
    """Let everything have been made earlier."""
    for document in everything(client):
        moved = {name: document[name] - by for name in ("created_at", "updated_at")}
        client.update("states", document["_id"], {"$set": moved})


def test_a_key_is_free_after_a_day(states: States, client: Mongo) -> None:
    """For another request, and for the same one, which is then made a second time."""
    [first] = states.create([state(1)], KEY)
    age(client, timedelta(hours=23, minutes=59))
    assert states.create([state(1)], KEY)[0].id == first.id
    age(client, timedelta(minutes=2))
    [second] = states.create([state(2)], Idempotency(KEY.key, b"another"))
    assert [str(document["_id"]) for document in everything(client)] == [first.id, second.id]
    assert "once" not in everything(client)[0]


def test_a_batch_that_was_cut_short_is_completed_by_the_same_request(
    states: States, client: Mongo
) -> None:
    """Not while the first may still be at work; then with the ids and stamps that it had begun."""
    items = [state(number) for number in (1, 2, 3, 4)]
    first = states.create(items, KEY)
    for cut in first[1], first[3]:
        states.delete([str(cut.id)])
    with pytest.raises(IdempotencyKeyInProgress):
        states.create(items, KEY)
    age(client, timedelta(seconds=idempotency_in_documents.IN_PROGRESS_S + 1))
    again = states.create(items, KEY)
    assert ids(again) == ids(first)
    assert [str(document["_id"]) for document in everything(client)] == ids(first)
    assert states.get_many(ids(first)) == again == states.create(items, KEY)


@pytest.mark.parametrize("count", [1, 4])
def test_the_same_at_once_is_stored_once(states: States, client: Mongo, count: int) -> None:
    """Each gets the one answer, or that the first is at work."""
    items = [state(number + 1) for number in range(count)]
    asking = [gevent.spawn(created, states, items) for _ in range(8)]
    answers = [one.value for one in gevent.joinall(asking, raise_error=True) if one.value]
    assert answers
    assert all(answer == answers[0] for answer in answers)
    assert states.get_many(ids(answers[0])) == answers[0]
    assert len(everything(client)) == count


def test_who_complete_a_batch_at_once_delete_nothing(
    states: States, client: Mongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gets the response finds all of the item."""
    items = [state(number + 1) for number in range(40)]
    first = states.create(items, KEY)
    states.delete(ids(first)[1:])
    age(client, timedelta(seconds=idempotency_in_documents.IN_PROGRESS_S + 1))
    read, readers, all_read = idempotency_in_documents._Key.read, [], Event()

    def read_with_the_others(key: Any) -> Any:
        found = read(key)
        readers.append(key)
        if len(readers) >= 6:
            all_read.set()
        all_read.wait(5)
        return found

    monkeypatch.setattr(idempotency_in_documents._Key, "read", read_with_the_others)
    asking = [gevent.spawn(created, states, items) for _ in range(6)]
    answers = [one.value for one in gevent.joinall(asking, raise_error=True) if one.value]
    assert answers
    assert [ids(answer) for answer in answers] == [ids(first)] * len(answers)
    assert [str(document["_id"]) for document in everything(client)] == ids(first)


def created(states: States, items: list[StateInput]) -> list[Stored] | None:
    try:
        return states.create(items, KEY)
    except IdempotencyKeyInProgress:
        return None


def test_pages_keep_their_place_among_equals(client: Mongo) -> None:
    """A batch has one created_at: its ids decide, forth and back, whatever comes and goes."""
    messages = Messages(client)
    made = messages.create([MessageInput(1, "user", f"m{number}") for number in range(7)])
    [at] = {document["created_at"] for document in everything(client, "messages")}
    for descending in (False, True):
        left = ids(made)[::-1] if descending else ids(made)
        listing = Listing("created_at", descending, 3, {"task_id": 1})
        first = messages.page(listing)
        assert (shown_ids(first), first.more) == (left[:3], True)
        messages.create([MessageInput(1, "user", "another")])
        after = replace(listing, position=Position(at, left[2]))
        second = messages.page(after)
        assert shown_ids(second) == left[3:6]
        before = replace(listing, position=Position(at, left[3], before=True))
        assert messages.page(before).items == first.items
        messages.delete([left[3]])
        assert shown_ids(messages.page(after))[:2] == left[4:6]
        assert (
            messages.page(replace(listing, position=Position(at, left[0], before=True))).more
            is False
        )
        messages.delete_where({"task_id": 1})
        made = messages.create([MessageInput(1, "user", f"m{number}") for number in range(7)])
        [at] = {document["created_at"] for document in everything(client, "messages")}

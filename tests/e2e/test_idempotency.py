"""``Idempotency-Key``: one write, whatever happens on the way; most of it on Postgres."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from tests.helpers.support import Answer, Databases, Service, service, wait_until


class Holder:
    """Somebody who locks a table, so that a write stays on its way."""

    def __init__(self, url: str) -> None:
        self._conn = psycopg2.connect(url)

    def hold(self, table: str) -> None:
        with self._conn.cursor() as cursor:
            cursor.execute(f"lock table {table} in share row exclusive mode")

    def release_slot(self) -> None:
        self._conn.rollback()

    def commit(self) -> None:
        self._conn.commit()

    def ask(self, statement: str) -> Any:
        """Run a statement beside that; return the first row's first column."""
        with self._conn.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def is_waited_for(self) -> bool:
        return bool(
            self.ask("select count(*) from pg_locks where not granted and pid <> pg_backend_pid()")
        )

    def close(self) -> None:
        self._conn.close()


@pytest.fixture
def holder(databases: Databases) -> Iterator[Holder]:
    """A client of the database beside the service."""
    made = Holder(databases.postgres)
    yield made
    made.close()


class Later:
    """A request that is under way."""

    def __init__(self, api: Service, path: str, body: object, key: str) -> None:
        self.answer: Answer | None = None
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._run, args=(api, path, body, key))
        self._thread.start()

    def _run(self, api: Service, path: str, body: object, key: str) -> None:
        try:
            self.answer = post(api, path, body, key)
        except OSError as error:
            self.error = error

    def join(self) -> "Later":
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self


def post(api: Service, path: str, body: object, key: str) -> Answer:
    return api.ask("POST", path, body, {"Idempotency-Key": key})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/agents", {"name": "in progress"}),
        ("/agents/batch", {"items": [{"name": "in progress 1"}, {"name": "in progress 2"}]}),
        ("/tasks", {"agent_id": 1, "title": "in progress"}),
        ("/books", {"title": "in progress", "authors": ["in progress"]}),
    ],
    ids=["one", "batch", "task", "book"],
)
def test_a_duplicate_is_answered_at_once_that_the_first_is_under_way(
    api: Service, holder: Holder, path: str, body: object
) -> None:
    """It does not wait; when the first is done, it is answered as the first was."""
    table, key = path.split("/")[1], f"progress {path}".replace(" ", "-")
    holder.hold(table)
    first = Later(api, path, body, key)
    wait_until(holder.is_waited_for, "the first to be under way")
    second = post(api, path, body, key)
    assert (second.status, second.json["code"]) == (409, "idempotency_key_in_progress")
    holder.release_slot()
    answer = first.join().answer
    assert answer is not None
    assert answer.status == 201
    assert post(api, path, body, key).body == answer.body


def test_a_worker_that_is_killed_on_the_way_leaves_nothing(
    databases: Databases, holder: Holder
) -> None:
    """No item, and no key that answers 409 for a day: the next attempt is the first."""
    name, key = "survivor", "killed-on-the-way"
    with service({**databases.environ, "WEB_CONCURRENCY": "1"}) as api:
        holder.hold("agents")
        first = Later(api, "/agents", {"name": name}, key)
        wait_until(holder.is_waited_for, "the first to be under way")
        [worker] = api.workers()
        os.kill(worker, signal.SIGKILL)
        assert first.join().error is not None
        holder.release_slot()
        wait_until(lambda: api.workers() not in ([], [worker]), "another worker")
        wait_until(api.is_ready, "it to be ready")

        def attempt() -> Answer | None:
            answer = post(api, "/agents", {"name": name}, key)
            return None if answer.status == 409 else answer

        answer = wait_until(attempt, "the killed one's transaction to end")
        assert (answer.status, answer.json["version"]) == (201, 1)
        again = post(api, "/agents", {"name": name}, key)
        assert again.body == answer.body


def test_a_key_is_forgotten_after_a_day(api: Service, holder: Holder) -> None:
    """The same request is another one then, and the old ones go from the table."""
    bodies = [{"agent_id": 1, "title": f"daily {number}"} for number in range(6)]
    first = [post(api, "/tasks", body, f"daily-{n}").json["id"] for n, body in enumerate(bodies)]
    mine = "key ~ ' daily-'"
    for hours, is_same in ((23, True), (2, False)):
        passed = f"created_at = created_at - {hours} * interval '1 hour'"
        holder.ask(f"update idempotency_keys set {passed} where {mine}")
        holder.commit()
        again = post(api, "/tasks", bodies[5], "daily-5")
        assert again.status == 201
        assert (again.json["id"] == first[5]) is is_same
    newest = again.json["id"]
    assert post(api, "/tasks", bodies[5], "daily-5").json["id"] == newest
    assert post(api, "/tasks", bodies[4], "daily-5").status == 422
    for number in range(3):
        assert post(api, "/tasks", bodies[0], f"another-{number}").status == 201
    assert holder.ask(f"select count(*) from idempotency_keys where {mine}") == 1


def test_a_request_that_failed_may_be_mended_and_sent_again(api: Service) -> None:
    """Only what was written is remembered: neither a 409 nor a 422 keeps its key."""
    key = "mended"
    assert post(api, "/agents", {"name": ""}, key).status == 422
    assert post(api, "/tasks", {"agent_id": 987654321, "title": "x"}, key).status == 409
    assert post(api, "/tasks", {"agent_id": 1, "title": "x"}, key).status == 201
    assert post(api, "/agents", {"name": "mended"}, key).status == 201  # of another resource


def test_many_at_once_with_one_key_are_one(api: Service) -> None:
    """All get the same response, or that the first is under way."""
    many = [Later(api, "/tasks", {"agent_id": 1, "title": "once"}, "many") for _ in range(20)]
    answers = [one.join().answer for one in many]
    made = {answer.body for answer in answers if answer is not None and answer.status == 201}
    assert len(made) == 1
    assert {answer.status for answer in answers if answer is not None} <= {201, 409}
    assert api.get("/tasks?title=once&total=true").json["total"] == 1


REPLAYS = 25
BODIES: dict[str, dict[str, Any]] = {
    "/agents": {"name": "replayed"},
    "/messages": {"task_id": 5_000_000, "role": "user", "content": "replayed"},
}


@pytest.mark.parametrize("is_batch", [False, True], ids=["one", "batch"])
@pytest.mark.parametrize("path", BODIES)
def test_all_replays_at_once_of_what_is_done_get_its_answer(
    api: Service, path: str, is_batch: bool
) -> None:
    """None of them gets that it is in progress: the others only read."""
    key, body = f"replayed-{path[1:]}-{is_batch}", BODIES[path]
    if is_batch:
        *_, last = body
        items = [{**body, last: f"replayed {number}"} for number in range(3)]
        path, body = f"{path}/batch", {"items": items}
    first = post(api, path, body, key)
    assert first.status == 201
    many = [Later(api, path, body, key) for _ in range(REPLAYS)]
    answers = [one.join().answer for one in many]
    assert {(answer.status, answer.body) for answer in answers if answer} == {(201, first.body)}

"""flask documents copy in processes: killed, stopped, two at once, following."""

import json
import random
import shlex
import signal
import subprocess
from typing import Any

import pytest

from tests.helpers.support import IS_LONG, run, wait_until
from tests.integration.app.documents.pair import Pair, contents, error_of

KILLS, COUNT, RATE = (20, 20_000, "4000") if IS_LONG else (3, 3_000, "3000")
OPTIONS = [[], ["--new-ids"]] if IS_LONG else [["--new-ids"]]
SIGNALS = [signal.SIGINT, signal.SIGTERM] if IS_LONG else [signal.SIGINT]


def filled(pair: Pair, count: int = COUNT) -> None:
    pair.source.insert_many([{"_id": n, "n": n} for n in range(count)])


def written(pair: Pair) -> int:
    """Return how many documents are in the target."""
    return int(pair.target.count_documents({}))


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_a_copy_that_is_killed_goes_on_and_has_each_document_once(
    pair: Pair, option: list[str]
) -> None:
    """Wherever it is killed: a kill each time when a little more is there."""
    filled(pair)
    chance = random.Random(16)
    ends: set[int | None] = set()
    for _ in range(KILLS):
        with pair.running("--max-rate", RATE, *option) as process:
            more = min(written(pair) + chance.randrange(COUNT // KILLS + 1), COUNT - 1)
            wait_until(
                lambda more=more, process=process: (
                    written(pair) > more or process.poll() is not None
                ),  # type: ignore[misc]
                "documents in the target",
            )
            process.kill()
            ends.add(process.wait())
    assert -signal.SIGKILL in ends
    done = pair.call("copy", *option)
    assert done.exit_code == 0, done.output
    assert f"{COUNT:,} documents copied" in done.stdout
    assert written(pair) == COUNT
    assert sorted(found["n"] for found in pair.target.find()) == list(range(COUNT))
    assert pair.checkpoint() is None
    if not option:
        assert contents(pair.target) == contents(pair.source)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_stop_is_clean_and_says_how_to_go_on(pair: Pair, number: signal.Signals) -> None:
    """What is on its way is written, and the command that is printed ends the copy."""
    filled(pair, 6_000)
    with pair.running("--restart", "--max-rate", "300") as process:
        wait_until(lambda: written(pair), "documents in the target")
        said = error_of(pair.call("copy"))  # a second copy, while the first one lives
        assert f"another copy into this collection is running (process {process.pid} on " in said
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    there = written(pair)
    assert 0 < there < 6_000
    found = pair.checkpoint()
    assert (found["owner"], found["copied"]) == (None, there)
    (line,) = [line for line in said.splitlines() if line.startswith("to go on: ")]
    command = shlex.split(line.removeprefix("to go on: "))
    assert command[:3] == ["flask", "documents", "copy"]
    done = run([part for part in command if part not in ("--max-rate", "300")], {})
    assert f"going on after {there:,} documents" in done.stderr
    assert contents(pair.target) == contents(pair.source)


def applied(process: "subprocess.Popen[str]") -> int:
    """Stop a copy that follows; return how many changes it applied."""
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    last = json.loads(out.splitlines()[-1])
    return int(last["changes"])


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_changes_follow_while_it_copies_and_after_and_when_it_goes_on(
    pair: Pair, option: list[str]
) -> None:
    """Inserts, updates, replacements and deletes; none is lost between two runs."""
    filled(pair, 1_000)

    def plain(found: Any) -> list[Any]:
        return sorted(
            [{name: value for name, value in one.items() if name != "_id"} for one in found],
            key=lambda one: int(one["n"]),
        )

    def is_equal() -> bool:
        return plain(pair.source.find()) == plain(pair.target.find())

    def change(begin: int) -> None:
        pair.source.delete_one({"_id": begin})
        pair.source.update_one({"_id": begin + 1}, {"$set": {"changed": True}})
        pair.source.replace_one({"_id": begin + 2}, {"n": begin + 2, "replaced": True})
        pair.source.insert_one({"_id": -1 - begin, "n": -1 - begin})

    options = ["--follow", "--json", *option]
    with pair.running(*options, "--max-rate", "500") as process:
        wait_until(lambda: written(pair), "documents in the target")
        change(0)  # behind the cursor, which does not come again
        change(900)  # before it
        wait_until(lambda: is_equal(), "both sides to be equal")
        change(100)
        wait_until(is_equal, "both sides to be equal")
        assert applied(process) >= 12
    change(200)
    with pair.running(*options) as process:
        wait_until(is_equal, "both sides to be equal")
        assert applied(process) >= 4
    done = pair.call("copy", *option)  # the end of following: compared, and no checkpoint any more
    assert done.exit_code == 0, done.output
    assert pair.checkpoint() is None


def test_a_followed_source_that_is_dropped_is_begun_again(pair: Pair) -> None:
    """Its changes end there, so going on would end in the same way."""
    filled(pair, 10)
    with pair.running("--follow") as process:
        wait_until(lambda: written(pair) == 10, "all documents in the target")
        pair.source.drop()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    gone = ".source: the collection is gone (drop); begin again with --restart"
    assert said.splitlines()[-1].endswith(gone)
    assert "to go on" not in said

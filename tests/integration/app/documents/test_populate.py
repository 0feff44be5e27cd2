"""flask documents populate, on a server."""

import json

import pytest

from tests.integration.app.documents.pair import Pair, call, contents


def test_two_runs_are_equal_whatever_the_batches_at_once(pair: Pair) -> None:
    """A second run into the same collection adds nothing, and a longer one what is missing."""
    source, target = pair.places
    done = call("populate", source, "1100")
    assert done.exit_code == 0, done.output
    assert ".source: 1,100 documents in " in done.stdout
    for count in ("300", "1100"):
        done = call("populate", target, count, "--batches-at-once", "1", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout.splitlines()[-1])["documents"] == int(count)
    assert contents(pair.target) == contents(pair.source)
    assert call("populate", target, "100", "--seed", "7").exit_code == 0
    assert pair.target.count_documents({}) == 1_200


def test_documents_that_are_in_the_way_are_named(pair: Pair) -> None:
    """A unique index, or another document of the same id."""
    pair.source.create_index("version", unique=True)
    done = call("populate", pair.places[0], "2")
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert "E11000" in line


@pytest.mark.parametrize(("count", "seed"), [("0", "1"), ("1", "-1"), ("x", "1")])
def test_wrong_numbers_are_refused(pair: Pair, count: str, seed: str) -> None:
    """By click, with exit status 2."""
    assert call("populate", pair.places[0], count, "--seed", seed).exit_code == 2

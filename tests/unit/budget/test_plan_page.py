"""docs/budget.md: its worked examples are what the code says."""

import re
import shlex

import pytest

from greenline.budget.plan import (
    COMMANDS,
    HEAD_ROOM,
    MONGODB_DEFAULT_MAX_CONNECTIONS,
    MONGODB_DEFAULT_POOL_SIZE,
)
from greenline.budget.sum import Line
from tests.helpers.budget import budget
from tests.helpers.support import CHECKOUT
from tests.unit.budget.sums import results

PAGE = (CHECKOUT / "docs" / "budget.md").read_text(encoding="utf-8")
EXAMPLES = dict(
    re.findall(r"^## ([^\n]+)\n[^#]*?^```\n\$ (greenline [^`]*?)^```", PAGE, re.MULTILINE)
)
ROW = re.compile(r"^ *(<=|[-+/=])? +(\d+)  (\S.*?)(?:  .*)?$", re.MULTILINE)


def test_there_are_three_worked_examples() -> None:
    """A page whose examples were renamed would otherwise pass without one."""
    assert list(EXAMPLES) == ["A laptop", "One host behind nginx", "Ten pods"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worked_example_is_what_the_command_prints(name: str) -> None:
    """Every line of it, as it stands on the page."""
    command, _, shown = EXAMPLES[name].partition("\n")
    done = budget(*shlex.split(command)[2:])
    assert done.exit_code == 0, done.output
    assert shown == done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worked_example_adds_up(name: str) -> None:
    """Computed from the page's numbers alone, as a reader would, down to the headline."""
    for table in re.split(r"\n(?=MongoDB)", EXAMPLES[name].partition("\n")[2]):
        lines = [Line(sign, int(number), text) for sign, number, text in ROW.findall(table)]
        found = results(lines)
        headline = [int(number) for number in re.findall(r"\d+", table.partition("\n\n")[0])]
        named = [line.number for line in lines if line.sign == "=" and line.name == "a host"]
        assert headline == [*named, *found[-len(headline) + 1 :]]
        assert len(found) >= len(headline) + 1


def test_the_sixteen_workers_of_the_page_do_not_fit() -> None:
    """The page's last sentence on the pods, asked with the example's own command."""
    command = EXAMPLES["Ten pods"].partition("\n")[0]
    done = budget(*shlex.split(command)[2:], "--workers", "16")
    (numbers,) = re.findall(r"Sixteen workers .* need (\d+) connections, and there are (\d+)", PAGE)
    assert done.exit_code == 1
    assert "need {} connections (control 1 + pool 1 each), there are {}:".format(*numbers) in (
        done.stderr
    )


def test_the_numbers_in_its_prose_are_the_codes() -> None:
    """What is said without a table: the head-room, the assumed limit, pymongo's pool."""
    assert f"- {HEAD_ROOM} for people with psql" in PAGE
    for limit in ("role", "database"):
        assert f"limit of the {limit} - what others hold of it - {COMMANDS} for commands" in PAGE
    assert f"else {MONGODB_DEFAULT_MAX_CONNECTIONS:,} are assumed" in PAGE
    assert f"`maxPoolSize`, {MONGODB_DEFAULT_POOL_SIZE} at most" in PAGE

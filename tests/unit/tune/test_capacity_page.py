"""docs/tune.md: its worked example is what the command prints, from figures that were measured."""

import re
import shlex

import pytest
from click.testing import CliRunner

from greenline.cli import main
from tests.helpers.budget import NOTHING
from tests.helpers.pages import read
from tests.helpers.support import CHECKOUT

PAGE = read("docs/tune.md")
# A block with the command, whole, or with the lines that "..." leaves out.
BLOCKS = re.findall(
    r"^```\n\$ (greenline capacity [^\n]*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize(("command", "shown"), BLOCKS)
def test_the_example_is_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, command: str, shown: str
) -> None:
    """Every line of it, as it stands on the page; it is typed in the checkout."""
    monkeypatch.chdir(CHECKOUT)
    done = CliRunner().invoke(main, shlex.split(command)[1:], env=NOTHING)
    assert done.exit_code == 0, done.output
    printed, begin = done.output, 0
    for part in shown.split("...\n"):
        begin = printed.index(part, begin) + len(part)
    assert len(shown) > len(printed) / 4


def test_the_example_adds_up() -> None:
    """Computed from the page's own numbers, as a reader would."""
    _, shown = BLOCKS[0]
    text = " ".join(shown.split())
    users, think, answer, rate = numbers(
        r"(\d+) users / \((\d+) s .* \+ ([\d.]+) ms .*?= ([\d.]+)", text
    )
    assert rate == pytest.approx(users / (think + answer / 1_000), rel=0.001)
    knee, planned = numbers(r"a host: ([\d.]+) requests .*?: ([\d.]+)", text)
    assert planned == pytest.approx(0.7 * knee, rel=0.001)
    (hosts,) = numbers(r"rounded up = (\d+)", text)
    assert hosts - 1 < rate / planned <= hosts
    of, surge, workers, pool, control, connections = numbers(
        r"\((\d+) hosts? \+ (\d+) while .*?\) x (\d+) workers? x "
        r"\(pool (\d+) \+ control (\d+)\) = (\d+)",
        text,
    )
    assert of == hosts
    assert connections == (hosts + surge) * workers * (pool + control)
    first = re.search(r"^ +1x +(.*)$", shown, re.MULTILINE)
    assert first is not None
    assert [float(cell) for cell in first[1].split()[:5]] == [
        rate,
        hosts,
        workers,
        pool,
        connections,
    ]


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return [float(each) for each in found.groups()]

"""docs/deploy.md and docs/watch.md: what they show is what there is."""

import re
from pathlib import Path

import pytest

from greenline.deploy import nginx
from greenline.telemetry import access_log
from tests.deploy.checking import OURS, SERVICE, check
from tests.deploy.picture import PAGE, PICTURE, ours
from tests.helpers.support import CHECKOUT

DEPLOY = PAGE.read_text(encoding="utf-8")
WATCH = (CHECKOUT / "docs" / "watch.md").read_text(encoding="utf-8")
CELL = re.compile(r"^\| ([^|]*) \|", re.MULTILINE)
# What gunicorn and nginx themselves say.
FOREIGN = {"WORKER TIMEOUT"}


def section(title: str) -> str:
    return WATCH.partition(f"## {title}\n")[2].partition("\n## ")[0]


def without_lines(text: str) -> str:
    """Return *text* without the numbers of lines, which a comment more would change."""
    return re.sub(r"(\.conf|\.py):\d+|lines \d+-\d+", r"\1", text)


def first_cells(table: str) -> list[str]:
    """Return what stands in backticks in the first column."""
    return [word for cell in CELL.findall(table) for word in re.findall(r"`([^`]+)`", cell)]


def test_the_picture_is_drawn_from_the_files() -> None:
    """`python -m tests.deploy.picture` draws it anew."""
    (drawn,) = PICTURE.findall(DEPLOY)
    assert drawn == ours(CHECKOUT)


def test_the_picture_s_bars_are_as_long_as_their_numbers() -> None:
    """On the axis above them, or the picture would lie."""
    lines = ours(CHECKOUT).splitlines()
    zero = lines[1].index("|")
    bars = [re.fullmatch(r"  \S.* ([\d.]+) ( *)(=*)\|", line) for line in lines[2:]]
    drawn = [bar for bar in bars if bar]
    assert len(drawn) == sum(line.startswith("  ") for line in lines[2:])
    for bar in drawn:
        assert bar.start(2) == zero
        assert len(bar[3]) == round(float(bar[1]))
    assert lines[0].index("60") - zero == 60


def test_the_example_is_what_the_command_prints(tmp_path: Path) -> None:
    """Our nginx.conf, without one line."""
    command, _, shown = DEPLOY.partition("\n$ ")[2].partition("\n```")[0].partition("\n")
    assert command == "greenline check-deploy --nginx /etc/nginx/nginx.conf"
    path = tmp_path / "nginx.conf"
    text, count = re.subn(r"^ +keepalive_timeout 4s;\n", "", Path(OURS[1]).read_text(), flags=re.M)
    path.write_text(text)
    done = check("--nginx", path, *OURS[2:], **SERVICE)
    printed = done.stdout.replace(str(path), "/etc/nginx/nginx.conf").replace(f"{CHECKOUT}/", "")
    assert (count, done.exit_code) == (1, 1)
    assert without_lines(shown) == without_lines(printed.strip())


def test_the_fields_of_nginx_s_log_are_in_its_format() -> None:
    """By the names that deploy/nginx.conf gives them."""
    (http,) = (one for one in nginx.tree(OURS[1]) if one.name == "http")
    (form,) = (one.args for one in http.block if one.name == "log_format")
    known = set(re.findall(r'"(\w+)":', "".join(form)))
    fields = first_cells(section("nginx's log").partition("| answer |")[0])
    assert len(fields) > 3
    assert set(fields) <= known


def test_the_fields_of_the_service_s_log_are_those_of_its_lines() -> None:
    """By the names of the JSON."""
    fields = first_cells(section("The service's log").partition("| line |")[0])
    assert len(fields) > 4
    assert set(fields) <= set(access_log.Entry.__struct_fields__)


SOURCES = "\n".join(
    path.read_text(encoding="utf-8")
    for package in ("greenline", "app")
    for path in (CHECKOUT / package).rglob("*.py")
)


@pytest.mark.parametrize("line", first_cells(section("The service's log").partition("| line |")[2]))
def test_a_line_of_the_log_is_one_that_is_written(line: str) -> None:
    """Somebody looks for it in a log: it has to be spelled as there."""
    assert line in FOREIGN or line in SOURCES


@pytest.mark.parametrize("name", first_cells(section("Counts")))
def test_a_count_is_one_that_is_kept(name: str) -> None:
    """By the name that the totals have."""
    assert f'"{name}"' in SOURCES


def test_every_code_that_a_page_names_is_one_of_ours() -> None:
    """Of errors, and of what nginx answers by itself."""
    codes = re.findall(r"`code` `(\w+)`(?: or `(\w+)`)?", WATCH)
    named = {code for pair in codes for code in pair if code}
    known = set(re.findall(r'code = "(\w+)"', SOURCES))
    known |= set(re.findall(r'"code":"(\w+)"', Path(OURS[1]).read_text()))
    assert len(named) > 3
    assert named <= known


def test_links_lead_somewhere() -> None:
    """To files of this repository."""
    links = re.findall(r"\]\(([^)#:]+)\)", DEPLOY + WATCH)
    assert links
    assert [link for link in links if not (CHECKOUT / "docs" / link).exists()] == []

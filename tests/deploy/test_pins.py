"""What the image installs is what everybody installs, each file of it known by its hash."""

import re
from pathlib import Path

from tests.helpers.support import CHECKOUT

PIN = re.compile(r"^([A-Za-z0-9_.-]+)==(\S+)", re.MULTILINE)


def pins(*names: str) -> dict[str, str]:
    """Return the versions of the packages in the files *names*, each name as pip compares it."""
    text = "\n".join((CHECKOUT / name).read_text() for name in names)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in PIN.findall(text)}


def test_the_image_has_the_versions_of_requirements_txt() -> None:
    """The files that `make pins` writes are up to date; of psycopg2 it is the source."""
    wanted = pins("requirements.txt", "requirements-common.txt")
    wanted["psycopg2"] = wanted.pop("psycopg2-binary")
    assert pins("requirements-image.txt") == wanted


def test_each_package_has_hashes_and_no_address() -> None:
    """pip takes what one of them fits, wherever it comes from, and refuses the rest."""
    for path in (Path("requirements-image.txt"), Path("requirements-build.txt")):
        text = (CHECKOUT / path).read_text()
        for each in re.split(r"\n(?=\S)", text.partition("make pins\n")[2].strip()):
            assert re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", each), each
        assert "://" not in text

"""Flask-SQLAlchemy's own tests have the same outcomes on pooled connections as without."""

from pathlib import Path

import pytest

from embedded.postgres import Postgres
from tests.flask_suite.running import Run, copy, run
from tests.helpers import sdist
from tests.helpers.forms import in_the_long_form
from tests.helpers.support import CHECKOUT

SUITE = CHECKOUT / "tests" / "flask_sqlalchemy_suite"
MIN_PASSED = 240


def on_postgres(whose: str, source: Path, folder: Path) -> Run:
    """Run the suite on Postgres in place of sqlite."""
    suite = folder / whose
    copy(source, suite)
    conftest = suite / "tests" / "conftest.py"
    text = conftest.read_text(encoding="utf-8")
    assert text.count('"sqlite://"') == 1
    with Postgres(folder / f"{whose} postgres", durable=False) as server:
        # Some tests drop a table that their session still reads, which sqlite allows.
        url = server.superuser_url.replace("postgresql:", "postgresql+psycopg2:")
        url += "&options=-c%20lock_timeout%3D500"
        conftest.write_text(text.replace('"sqlite://"', repr(url)), encoding="utf-8")
        given = {"GREENLINE_POOL": "1", "DATABASE_URL": server.superuser_url}
        arguments = ("-p", "empty_schema", "tests")
        return run(whose, suite, *arguments, path=[suite / "src", SUITE], more=given, limit_s=400)


@in_the_long_form
@pytest.mark.timeout(900)
def test_flask_sqlalchemys_own_tests_have_the_same_outcomes(tmp_path: Path) -> None:
    """On Postgres, in a process that is patched and one that is not."""
    source = sdist.folder("flask_sqlalchemy", "3.1.1", SUITE / "sdist.txt")
    stock, ours = (on_postgres(whose, source, tmp_path) for whose in ("stock", "patched"))
    assert ours.outcomes == stock.outcomes
    assert sum(each == "passed" for each in stock.outcomes.values()) >= MIN_PASSED

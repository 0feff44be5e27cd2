"""flask documents on a server that asks for a password, over TLS."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import guarded as guarding
from tests.helpers.guarded import PASSWORD, Guarded, guarded
from tests.integration.app.documents.pair import call, error_of

pytestmark = guarding.marks


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Guarded]:
    """A server with users."""
    with guarded(folder / "guarded documents") as running:
        yield running


@pytest.mark.parametrize(
    ("user", "password"),
    [("writer", "wr0ng"), ("stranger", "wr0ng"), ("", "")],
    ids=["password", "user", "none"],
)
def test_wrong_credentials_are_named_without_the_password(
    server: Guarded, user: str, password: str
) -> None:
    """On either side."""
    right = server.uri("writer", *server.tls).replace("/d?", "/d.c?")
    other = right.replace("/d.c?", "/d.other?")
    wrong = server.uri(user, *server.tls, password=password).replace("/d?", "/d.other?")
    for places in ((wrong, right), (right, wrong)):
        said = error_of(call("copy", *places))
        assert said.startswith(f"mongodb://localhost:{server.port}/d.other: ")
        assert "wr0ng" not in said
        assert PASSWORD not in said
    done = call("copy", right, other)
    assert done.exit_code == 0, done.output

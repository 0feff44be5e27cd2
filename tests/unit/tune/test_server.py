"""The URL of a server that runs already."""

import pytest

from greenline.errors import ConfigError
from greenline.tune.server import running


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://user:secret@127.0.0.1", "give --header 'Authorization: ...'"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("ftp://127.0.0.1", "not a URL such as"),
        ("http://127.0.0.1:99999", "out of range"),
    ],
)
def test_a_url_that_cannot_be_asked_is_one_line(url: str, reason: str) -> None:
    """Without the password that it may have."""
    with pytest.raises(ConfigError, match=reason) as raised:
        running(url, is_owned=True)
    assert "secret" not in str(raised.value)

"""The settings of a server that is started, and the URL of one that runs already."""

import os
import runpy
import socket
from pathlib import Path

import pytest

from greenline.errors import ConfigError
from greenline.tune.server import CONFIGURATION, running


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://user:secret@127.0.0.1", "give --header 'Authorization: ...'"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("ftp://127.0.0.1", "not a URL such as"),
        ("http://127.0.0.1/books", "its path and query are for --load"),
        ("http://127.0.0.1:99999", "out of range"),
    ],
)
def test_a_url_that_cannot_be_asked_is_one_line(url: str, reason: str) -> None:
    """Without the password that it may have."""
    with pytest.raises(ConfigError, match=reason) as raised:
        running(url, is_owned=True)
    assert "secret" not in str(raised.value)


def test_a_name_is_no_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is now, the generator looks it up again."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("127.0.0.1", 80))])
    with pytest.raises(ConfigError, match=r"shop\.test is neither localhost nor an address"):
        running("http://shop.test", is_owned=False)
    for host in ("localhost", "127.0.0.2:8000", "[::1]"):
        assert running(f"http://{host}", is_owned=False).url == f"http://{host}"


def test_the_settings_of_the_folder_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon has no parent to end it; the files are those of the service."""
    monkeypatch.chdir(tmp_path)
    Path("gunicorn.conf.py").write_text(
        'daemon = True\npidfile = "g.pid"\naccesslog = "access.log"\npreload_app = True\n'
        'raw_env = ["A=1", "B=2"]\n'
    )
    Path("written.py").write_text(CONFIGURATION.format(varied=["A"]))
    found = runpy.run_path(os.path.abspath("written.py"))
    assert (found["daemon"], found["pidfile"], found["accesslog"]) == (False, None, None)
    assert (found["preload_app"], found["raw_env"]) == (True, ["B=2"])

"""greenline.deploy.nginx: how times, sizes and included files of a configuration are read."""

from pathlib import Path

import pytest

from greenline.deploy import nginx
from greenline.errors import ConfigError

LOCATION = "location / {{ proxy_pass http://a; {} {}; }}"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("90", 90, id="no unit"),
        pytest.param("1500ms", 1.5, id="ms"),
        pytest.param("5m", 300, id="minutes"),
        pytest.param("5M", 5 * 30 * 86_400, id="months"),
        pytest.param("1y", 365 * 86_400, id="a year"),
        pytest.param('"1h 30m"', 5_400, id="two parts"),
    ],
)
def test_a_time_has_nginx_s_units(text: str, seconds: float, tmp_path: Path) -> None:
    """M is months, and m minutes."""
    file = tmp_path / "site.conf"
    file.write_text(LOCATION.format("proxy_read_timeout", text))
    (route,) = nginx.read(str(file)).routes
    assert route.read_timeout_s.value == seconds


@pytest.mark.parametrize("text", ["5S", "5H", "5MS"])
def test_a_time_in_capitals_is_none(text: str, tmp_path: Path) -> None:
    """nginx refuses it."""
    file = tmp_path / "site.conf"
    file.write_text(LOCATION.format("proxy_read_timeout", text))
    with pytest.raises(ConfigError, match=text):
        nginx.read(str(file))


@pytest.mark.parametrize("text", ["5m", "5M", "5120k", "5120K", "5242880"])
def test_a_size_has_either_case(text: str, tmp_path: Path) -> None:
    """M is the same as m in a size."""
    file = tmp_path / "site.conf"
    file.write_text(LOCATION.format("client_max_body_size", text))
    (route,) = nginx.read(str(file)).routes
    assert route.max_body_bytes.value == 5 * 1024**2


def site(folder: Path, file: str) -> Path:
    """Write Debian's layout: a server in *file*, whose headers are in a file beside nginx.conf."""
    texts = {
        "nginx.conf": "events {} http { include sites-enabled/*; }",
        "proxy_params": "proxy_set_header Host $host;",
        "snippets/times.conf": "include snippets/read.conf; proxy_connect_timeout 2s;",
        "snippets/read.conf": "proxy_read_timeout 9s;",
        file: "server { location / { include proxy_params; include snippets/times.conf; "
        "proxy_pass http://127.0.0.1:8000; } }",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / file


@pytest.mark.parametrize("is_link", [False, True], ids=["the file itself", "its link"])
def test_a_site_is_read_with_its_includes(is_link: bool, tmp_path: Path) -> None:
    """Relative paths are those of nginx.conf, two folders deep as well."""
    file = site(tmp_path, "sites-available/app")
    if is_link:
        file = tmp_path / "sites-enabled" / "app"
        file.parent.mkdir()
        file.symlink_to("../sites-available/app")
    (route,) = nginx.read(str(file)).routes
    assert route.headers["host"].where == f"{tmp_path}/proxy_params:1"
    assert (route.connect_timeout_s.value, route.read_timeout_s.value) == (2, 9)
    assert route.where == f"{file}:1"


def test_a_site_reads_as_it_does_from_its_main_file(tmp_path: Path) -> None:
    """The same location, by the name of the site's file."""
    file = site(tmp_path, "sites-enabled/app")
    assert nginx.read(str(file)).routes == nginx.read(str(tmp_path / "nginx.conf")).routes


def test_a_site_without_a_main_file_has_its_own_folder(tmp_path: Path) -> None:
    """As a checkout has it, beside what it includes."""
    file = site(tmp_path, "app.conf")
    (tmp_path / "nginx.conf").unlink()
    (route,) = nginx.read(str(file)).routes
    assert route.read_timeout_s.value == 9


def test_an_include_that_is_missing_is_named(tmp_path: Path) -> None:
    """With the line that includes it."""
    file = site(tmp_path, "sites-available/app")
    (tmp_path / "snippets" / "read.conf").unlink()
    with pytest.raises(ConfigError, match=r"times\.conf:1: No such file: .*/snippets/read\.conf"):
        nginx.read(str(file))

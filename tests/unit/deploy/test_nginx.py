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

"""greenline.settings: one grammar for the runtime's variables and for those of the service."""

import pytest

from config import load
from greenline import settings
from greenline.errors import ConfigError

URLS = {"DATABASE_URL": "postgresql://h/d", "MONGODB_URI": "mongodb://h"}


@pytest.mark.parametrize(
    ("text", "value"), [("30", 30.0), ("2.5", 2.5), (".5", 0.5), ("1e3", 1000.0), ("86400", 86400)]
)
def test_the_service_and_the_worker_read_the_same_request_timeout(text: str, value: float) -> None:
    """Each form of a number that one of them accepts has the same value for the other."""
    environ = {**URLS, "REQUEST_TIMEOUT": text}
    assert load(environ).request_timeout_s == value
    assert settings.REQUEST_TIMEOUT.read(environ) == value


def test_only_the_service_has_a_default_request_timeout() -> None:
    """A hosted application has no limit unless it sets one."""
    assert load(URLS).request_timeout_s == 30.0
    assert settings.REQUEST_TIMEOUT.read(URLS) is None


@pytest.mark.parametrize("variable", settings.VARIABLES, ids=lambda variable: variable.name)
def test_each_default_is_valid(variable: settings.Variable[object]) -> None:
    """An unset variable and a blank one have the default, which its own parser accepts."""
    assert variable.read({}) == variable.read({variable.name: "  "})


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        (settings.HOSTS, "Auto", None),
        (settings.HOSTS, "7", 7),
        (settings.SURGE_HOSTS, "0", 0),
        (settings.MAX_IN_PROGRESS, "AUTO", None),
        (settings.MAX_WAITING, "0", 0),
        (settings.DRAIN_DELAY, "0.0", 0.0),
        (settings.OFFLOAD, "Off", None),
        (settings.OFFLOAD, "mysqlclient, a.b:c", ("a.b:c",)),
        (settings.REQUIRE_HOST, "0", False),
        (settings.ACCESS_LOG, "JSON", "json"),
        (settings.LOG, "JSON", "json"),
        (settings.MAX_BODY_BYTES, "1000000000000", 10**12),
        (settings.MAX_BODY_BYTES, "", None),
        (settings.BODY_TIMEOUT, "", None),
    ],
    ids=lambda part: part.name if isinstance(part, settings.Variable) else repr(part),
)
def test_a_text_is_parsed(variable: settings.Variable[object], text: str, value: object) -> None:
    """Words count in any case; a number has the limits of its variable."""
    assert variable.read({variable.name: text}) == value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        (settings.WORKERS, "1001"),
        (settings.HOSTS, "0"),
        (settings.SURGE_HOSTS, "-1"),
        (settings.POSTGRES_POOL_SIZE, "1_000"),
        (settings.MAX_BODY_BYTES, "9" * 5000),
        (settings.HEAD_TIMEOUT, "0"),
        (settings.HEAD_TIMEOUT, "nan"),
        (settings.BODY_TIMEOUT, "inf"),
        (settings.WRITE_TIMEOUT, "86401"),
        (settings.DRAIN_DELAY, "-1"),
        (settings.REQUIRE_HOST, "yes"),
        (settings.PG_WAIT, "select"),
    ],
    ids=lambda part: part.name if isinstance(part, settings.Variable) else part[:8],
)
def test_an_invalid_text_is_refused(variable: settings.Variable[object], text: str) -> None:
    """The error begins with the name of the variable."""
    with pytest.raises(ConfigError, match=rf"^{variable.name}: '"):
        variable.read({variable.name: text})


def test_a_start_checks_the_variables_of_the_worker_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hosted application may use POSTGRES_POOL_SIZE with a meaning of its own."""
    monkeypatch.setenv("POSTGRES_POOL_SIZE", "many")
    settings.check()
    monkeypatch.setenv("GREENLINE_BODY_TIMEOUT", "many")
    with pytest.raises(ConfigError, match=r"^GREENLINE_BODY_TIMEOUT: 'many'"):
        settings.check()


def test_a_hub_is_watched_unless_its_limit_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Milliseconds become seconds, and 0 becomes None."""
    monkeypatch.setenv("GREENLINE_BLOCKED_HUB_MS", "250")
    assert settings.blocked_hub_s() == 0.25
    monkeypatch.setenv("GREENLINE_BLOCKED_HUB_MS", "0")
    assert settings.blocked_hub_s() is None


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        pytest.param("/alive,/ready", ("/alive", "/ready"), id="two"),
        pytest.param(" /alive , /ready ,", ("/alive", "/ready"), id="spaces and a trailing comma"),
        pytest.param(",", (), id="none"),
        pytest.param("", ("/healthz", "/readyz"), id="blank is the default"),
    ],
)
def test_health_paths_are_never_empty(
    text: str, paths: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trailing comma adds no path."""
    monkeypatch.setenv(settings.HEALTH_PATHS.name, text)
    assert settings.admission().health_paths == paths

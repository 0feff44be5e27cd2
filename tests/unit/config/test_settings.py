"""config: text to values, errors that name the variable."""

import pytest

from config import load
from greenline.budget.cgroup import default_workers
from greenline.errors import ConfigError

URLS = {"DATABASE_URL": "postgresql://h/d", "MONGODB_URI": "mongodb://h"}


def test_defaults_are_those_of_the_readme() -> None:
    """With only the two URLs set, everything else has its documented default."""
    settings = load(URLS)
    assert (settings.port, settings.workers) == (8000, default_workers())
    assert (settings.request_timeout_s, settings.pool_timeout_s) == (30.0, None)
    assert settings.pool_max_waiting == 1000
    assert (settings.postgres_pool_size, settings.mongodb_max_pool_size) == (None, None)
    assert (settings.hosts, settings.surge_hosts) == (1, 1)
    assert (settings.pgbouncer_pool_size, settings.mongodb_max_connections) == (None, None)
    assert (settings.diagnostics, settings.log_level) == (False, "info")
    assert settings.ops_token is None
    assert (settings.auth, settings.rate_limit, settings.cors_origins) == (True, None, ())
    assert settings.rate_limit_storage is None
    assert settings.mongodb_documentdb is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "abc"),
        ("PORT", "0"),
        ("PORT", "65536"),
        ("PORT", "\uff18\uff10"),
        ("PORT", "-1"),
        ("WEB_CONCURRENCY", "0"),
        ("WEB_CONCURRENCY", "1.5"),
        ("POSTGRES_POOL_SIZE", "0"),
        ("MONGODB_MAX_POOL_SIZE", "many"),
        ("REQUEST_TIMEOUT", "0"),
        ("REQUEST_TIMEOUT", "-1"),
        ("REQUEST_TIMEOUT", "nan"),
        ("REQUEST_TIMEOUT", "inf"),
        ("REQUEST_TIMEOUT", "1e9"),
        ("POOL_TIMEOUT", "soon"),
        ("GREENLINE_HOSTS", "0"),
        ("GREENLINE_HOSTS", "some"),
        ("GREENLINE_SURGE_HOSTS", "-1"),
        ("PGBOUNCER_POOL_SIZE", "0"),
        ("MONGODB_MAX_CONNECTIONS", "many"),
        ("POOL_MAX_WAITING", "-1"),
        ("GREENLINE_DIAGNOSTICS", "yes"),
        ("MONGODB_DOCUMENTDB", "true"),
        ("LOG_LEVEL", "loud"),
        ("AUTH", "no"),
        ("CORS_ORIGINS", "https://app.example, app.example"),
        ("CORS_ORIGINS", "https://app.example/"),
        ("CORS_ORIGINS", "https://*.example"),
        ("DATABASE_URL", ""),
        ("DATABASE_URL", "mysql://h"),
        ("MONGODB_URI", "h:27017"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    """Each setting out of its range ends in an error that begins with its name."""
    with pytest.raises(ConfigError, match=rf"^{name}: "):
        load({**URLS, name: value})


def test_an_error_about_a_url_does_not_show_the_password() -> None:
    """A URL of the wrong scheme may hold a secret all the same."""
    with pytest.raises(ConfigError) as caught:
        load({**URLS, "DATABASE_URL": "mysql://me:sesame@h/d"})
    assert "sesame" not in str(caught.value)


def test_an_empty_variable_counts_as_unset() -> None:
    """Compose files and shells set empty variables where none was meant."""
    assert load({**URLS, "PORT": "", "POOL_TIMEOUT": " "}).port == 8000


def test_several_origins_may_be_given() -> None:
    """As browsers spell them, with commas between."""
    given = "https://app.example, http://[::1]:8080,"
    assert load({**URLS, "CORS_ORIGINS": given}).cors_origins == (
        "https://app.example",
        "http://[::1]:8080",
    )
    assert load({**URLS, "CORS_ORIGINS": "*"}).cors_origins == ("*",)


def test_hosts_may_be_counted() -> None:
    """``auto`` in whatever case is no number."""
    assert load({**URLS, "GREENLINE_HOSTS": "Auto"}).hosts is None


def test_the_token_is_not_shown() -> None:
    """The record may end up in a log or a stack."""
    settings = load({**URLS, "OPS_TOKEN": "sesame"})
    assert settings.ops_token == "sesame"
    assert "sesame" not in repr(settings)

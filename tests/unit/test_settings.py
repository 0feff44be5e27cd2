"""greenline.settings: how the text of a variable is read."""

import pytest

from greenline import settings


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

"""The timeouts of our own files are in order, and whichever is changed alone is noticed."""

import re
import shutil
from pathlib import Path

import pytest

from app import databases, factory
from tests.deploy.order import COMPOSE, FILES, KUBERNETES, SYSTEMD, out_of_order, steps
from tests.helpers.support import CHECKOUT

NGINX, GUNICORN = FILES[:2]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with our files, to change them."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)
    shutil.copytree(CHECKOUT / KUBERNETES, tmp_path / KUBERNETES)
    return tmp_path


def change(folder: Path, name: str, pattern: str, new: str) -> None:
    """Replace what *pattern* finds, somewhere in the file or in the files of the folder."""
    path = folder / name
    found = 0
    for one in sorted(path.rglob("*.*")) if path.is_dir() else [path]:
        text, count = re.subn(pattern, new, one.read_text(), flags=re.MULTILINE)
        one.write_text(text)
        found += count
    assert found == 1, f"{name} has {pattern!r} {found} times"


def test_ours_hold() -> None:
    """Each step, and the limit of bodies, by the defaults of the environment."""
    assert out_of_order(CHECKOUT, {}) == set()
    assert {one.code for one in steps(CHECKOUT, {})} == {
        "keepalive-order", "keepalive-stop", "drain-order", "deadline-order", "statement",
        "compose", "systemd", "kubernetes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pattern", "new", "code"),
    [
        pytest.param(NGINX, r"^( +)keepalive_timeout 4s", r"\1keepalive_timeout 5s",
                     "keepalive-order", id="nginx's keep-alive"),
        pytest.param(NGINX, r"^( +)proxy_read_timeout 35s", r"\1proxy_read_timeout 30s",
                     "deadline-order", id="nginx's patience"),
        pytest.param(NGINX, r"client_max_body_size 1m", "client_max_body_size 2m", "body",
                     id="nginx's bodies"),
        pytest.param(GUNICORN, r"^keepalive = 5", "keepalive = 4", "keepalive-order",
                     id="gunicorn's keep-alive"),
        pytest.param(GUNICORN, r"^keepalive = 5", "keepalive = 36", "keepalive-stop",
                     id="a keep-alive that outlasts a stop"),
        pytest.param(GUNICORN, r"^graceful_timeout = .*", "graceful_timeout = 30", "drain-order",
                     id="a stop as short as a request"),
        pytest.param(GUNICORN, r"^graceful_timeout = .*", "graceful_timeout = 40", "compose",
                     id="a stop as long as compose waits"),
        pytest.param(GUNICORN, r"^graceful_timeout = .*", "graceful_timeout = 45", "systemd",
                     id="a stop as long as systemd waits"),
        pytest.param(GUNICORN, r"^graceful_timeout = .*", "graceful_timeout = 60", "kubernetes",
                     id="a stop as long as Kubernetes waits"),
        pytest.param(COMPOSE, r"stop_grace_period: 40s", "stop_grace_period: 35s", "compose",
                     id="compose"),
        pytest.param(SYSTEMD, r"^TimeoutStopSec=45", "TimeoutStopSec=35", "systemd",
                     id="systemd"),
        pytest.param(KUBERNETES, r"terminationGracePeriodSeconds: \d+",
                     "terminationGracePeriodSeconds: 45", "kubernetes", id="Kubernetes"),
        pytest.param(KUBERNETES, r"^DRAIN_DELAY=\d+", "DRAIN_DELAY=20", "kubernetes",
                     id="Kubernetes' drain"),
        pytest.param(KUBERNETES, r"command: \[sleep, \"\d+\"\]", "command: [sleep, '20']",
                     "kubernetes", id="Kubernetes' preStop"),
    ],
)  # fmt: skip
def test_a_number_that_is_changed_alone_is_noticed(
    name: str, pattern: str, new: str, code: str, copied: Path
) -> None:
    """In whichever file it is."""
    change(copied, name, pattern, new)
    assert code in out_of_order(copied, {})


@pytest.mark.parametrize(
    ("environ", "codes"),
    [
        pytest.param({"REQUEST_TIMEOUT": "35"}, {"deadline-order", "compose"}, id="a request"),
        pytest.param({"DRAIN_DELAY": "5"}, {"compose"}, id="a drain"),
        pytest.param({"GREENLINE_PROXY_KEEPALIVE": "3"}, {"proxy-keepalive"}, id="the proxy"),
    ],
)
def test_a_variable_that_moves_the_order_is_noticed(
    environ: dict[str, str], codes: set[str]
) -> None:
    """gunicorn.conf.py follows REQUEST_TIMEOUT and DRAIN_DELAY; the others have to be set."""
    assert codes <= out_of_order(CHECKOUT, environ)
    assert "drain-order" not in out_of_order(CHECKOUT, environ)


def test_the_service_s_own_numbers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long before the request a statement ends, and how large a body may be."""
    monkeypatch.setattr(databases, "STATEMENT_MARGIN_S", 0.0)
    monkeypatch.setattr(factory, "MAX_JSON_BYTES", factory.MAX_JSON_BYTES + 1)
    assert out_of_order(CHECKOUT, {}) == {"statement", "body"}

"""What ``GREENLINE_OFFLOAD`` names runs in native threads; a wrong name is a ConfigError."""

import subprocess
import sys
from pathlib import Path

import psycopg2
import pytest

from greenline import offload, settings
from greenline.errors import ConfigError
from greenline.offload import names
from tests.helpers.support import CHECKOUT, environ

MODULE = """
from _thread import get_ident

def where():
    return get_ident()

class Client:
    def where(self):
        return get_ident()
    @staticmethod
    def static():
        return get_ident()
"""
SCRIPT = """
from greenline.patch import patch_all; patch_all()
from gevent.monkey import get_original
from slow.client import Client, where
here = get_original("_thread", "get_ident")()
print(where() == here, Client().where() == here, Client.static() == here)
"""


def output(folder: Path, value: str) -> str:
    """Run the script with the setting; return what it says at last."""
    (folder / "slow").mkdir(exist_ok=True)
    (folder / "slow" / "__init__.py").touch()
    text = MODULE.replace("from _thread", "from gevent.monkey import get_original\nget_ident =")
    text = text.replace("import get_ident\n", "get_original('_thread', 'get_ident')\n", 1)
    (folder / "slow" / "client.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**environ({}), "GREENLINE_OFFLOAD": value, "PYTHONPATH": f"{CHECKOUT}:{folder}"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    return (done.stdout + done.stderr).splitlines()[-1]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "True True True"),
        ("slow.client:where", "False True True"),
        ("slow.client:Client.where , slow.client:Client.static", "True False False"),
        ("off", "True True True"),
    ],
    ids=["nothing", "a function", "methods", "off"],
)
def test_a_callable_is_run_in_a_thread(tmp_path: Path, value: str, said: str) -> None:
    """However the application takes it, and before its module is imported."""
    assert output(tmp_path, value) == said


@pytest.mark.parametrize(
    "value", ["slow.client:missing", "slow.client:Client.missing", "nowhere.at_all:where"]
)
def test_a_name_of_nothing_is_reported(tmp_path: Path, value: str) -> None:
    """The start ends with the name."""
    assert f"ConfigError: GREENLINE_OFFLOAD: {value!r}: " in output(tmp_path, value)


@pytest.mark.parametrize("value", ["mysql", "a.b", "a:b:c", "a:", "off,a:b", "a:b,"])
def test_a_value_that_is_no_name_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Before a worker starts, with the part that is wrong."""
    monkeypatch.setenv("GREENLINE_OFFLOAD", value)
    with pytest.raises(ConfigError, match=r"GREENLINE_OFFLOAD: '.*' is neither"):
        settings.check()


def test_advice_names_the_setting_or_the_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """For drivers what is known, for other code its own name, for the standard library nothing."""
    assert offload.advice(names.__file__, "wrap") is None
    assert offload.advice(subprocess.__file__, "call") is None
    assert offload.advice("/nowhere.py", "call") is None
    assert offload.advice(psycopg2.__file__, "connect") is None
    advice = offload.advice(__file__, "output")
    assert advice is not None
    assert f"GREENLINE_OFFLOAD={__name__}:output" in advice
    for driver, said in (
        ("cx_Oracle", "use oracledb"),
        ("ibm_db", "ibm_db waits in C"),
        ("mysql.connector.connection", ":execute runs it in a thread"),
    ):
        module = type(sys)(driver)
        module.__file__ = f"/lib/{driver}.py"
        monkeypatch.setitem(sys.modules, driver, module)
        assert said in str(offload.advice(f"/lib/{driver}.py", "execute"))

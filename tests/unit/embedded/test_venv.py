"""The console script of the checkout's .venv, what is compiled, and what an install shows."""

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from embedded import venv
from greenline import __version__
from tests.helpers.support import CHECKOUT, environ

LOGGED = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}\] \[\d+\] \[INFO\] setup: "
INSTALL = "from embedded import venv; venv.PYTHON = {!r}; venv._install('serve')"
# In the place of pip: two packages, an error on its way, and an exit status.
PIP = """#!/bin/sh
echo "Collecting click==8.5.1 (from -r requirements-common.txt (line 5))"
echo "  Downloading click-8.5.1-py3-none-any.whl"
echo "Collecting Flask==3.1.3 (from -r requirements-common.txt (line 8))"
echo "Installing collected packages: click, Flask"
exit {status}
"""


def install(folder: Path, status: int, output: int) -> int:
    """Install with a pip that ends with *status*; return the exit status."""
    pip = folder / "python"
    pip.write_text(PIP.format(status=status))
    pip.chmod(0o755)
    command = [sys.executable, "-c", INSTALL.format(str(pip))]
    process = subprocess.Popen(command, cwd=CHECKOUT, env=environ({}), stdout=output, stderr=output)
    return process.wait(timeout=60)


@pytest.mark.parametrize("status", [0, 1], ids=["success", "failure"])
def test_a_terminal_shows_how_far_pip_is(tmp_path: Path, status: int) -> None:
    """A bar that is drawn over, with the package that is fetched, and is gone at the end."""
    ours, terminal = pty.openpty()
    assert install(tmp_path, status, terminal) == status
    os.write(terminal, b"\0")  # one read may return less than was written before
    data = b""
    while not data.endswith(b"\0"):
        data += os.read(ours, 65_536)
    shown = data[:-1].decode()
    os.close(ours)
    os.close(terminal)
    first, *bars = re.split("\r\x1b\\[K|\r\n", shown)
    logged = re.fullmatch(LOGGED + r"installing (\d+) packages into .venv, about \d+ s", first)
    assert logged
    count = int(logged[1])
    assert [bar.split("] ")[1] for bar in bars if "[" in bar] == [
        f"1/{count} click==8.5.1", f"2/{count} Flask==3.1.3", f"{count}/{count} unpacking",
    ]  # fmt: skip
    end = shown.rpartition("\r\x1b[K")[2]
    assert end.startswith("setup: failed") if status else end == ""


def test_a_pipe_gets_one_line(tmp_path: Path) -> None:
    """With the time, the level, and how long it takes."""
    with (tmp_path / "output").open("w+") as output:
        assert install(tmp_path, 0, output.fileno()) == 0
        output.seek(0)
        lines = [line for line in output if "Collecting" not in line]
    assert re.match(LOGGED + r"installing \d+ packages", lines[0])


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what is in C, in a folder with a blank in its name."""
    source = tmp_path / "a folder" / "_copying.c"
    source.parent.mkdir()
    shutil.copy(venv.SOURCE, source)
    monkeypatch.setattr(venv, "SOURCE", str(source))
    monkeypatch.setattr(venv, "COMPILED", str(source.with_suffix(".abi3.so")))
    return source


def age(path: Path) -> None:
    os.utime(path, (1, path.stat().st_mtime - 60))


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_what_is_in_c_is_compiled_after_a_change(source: Path) -> None:
    """Python can load it; it is compiled once, and again when the source is newer."""
    compiled = Path(venv.COMPILED)
    age(source)
    venv._compile()
    load = "import _copying; print(_copying.read_rows.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", load], cwd=source.parent, capture_output=True, text=True
    )
    assert done.stdout == "read_rows\n", done.stderr
    assert {each.name for each in source.parent.iterdir()} == {source.name, compiled.name}
    made = compiled.stat().st_mtime_ns
    venv._compile()
    assert compiled.stat().st_mtime_ns == made
    age(compiled)
    age(compiled)
    venv._compile()
    assert compiled.stat().st_mtime_ns > made


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false"], ids=["none", "one that fails"])
def test_without_a_compiler_nothing_is_compiled(
    source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], compiler: str
) -> None:
    """Without a word, and what was compiled of an older source is gone."""
    compiled = Path(venv.COMPILED)
    compiled.touch()
    age(compiled)
    age(compiled)
    monkeypatch.setenv("CC", compiler)
    venv._compile()
    assert [each.name for each in source.parent.iterdir()] == [source.name]
    assert capfd.readouterr() == ("", "")


def test_the_script_runs_the_code_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From any folder, and whatever the path of .venv has in it."""
    folder = tmp_path / "it's a .venv"
    folder.mkdir()
    python = folder / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setattr(venv, "PYTHON", str(python))
    monkeypatch.setattr(venv, "SCRIPT", str(folder / "greenline"))
    # Python finds the packages of an environment by the place of its link.
    packages = [path for path in sys.path if path.endswith("site-packages")]
    for _ in range(2):
        venv._add_script()
        done = subprocess.run(
            [folder / "greenline", "--version"],
            cwd=tmp_path,
            env=environ({"PYTHONPATH": os.pathsep.join(packages)}),
            capture_output=True,
            text=True,
        )
        assert (done.stdout, done.stderr) == (f"greenline {__version__}\n", "")


def test_a_failed_install_names_the_compiler_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the headers of this Python; where there is one, nothing is said of it."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    assert venv._compiler_hint().endswith(f"system packages gcc, libc6-dev, python{version}-dev")
    monkeypatch.setenv("CC", "true")
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(venv.sysconfig, "get_path", lambda _: str(tmp_path))
    assert venv._compiler_hint() == ""

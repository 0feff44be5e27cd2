"""greenline.patch: what is done once, when a process starts."""

from importlib import metadata

from greenline.patch import gevent_patches
from tests.helpers import support


def test_the_installed_packages_are_read_once() -> None:
    """As often as without gevent, which asks for plugins at each module that it patches."""
    said = support.run(
        [
            "python",
            "-c",
            "from importlib import metadata\n"
            "from greenline.patch import patch_all\n"
            "read, count = metadata.PathDistribution.read_text, []\n"
            "def counted(self, name):\n"
            "    if name == 'entry_points.txt': count.append(str(self._path))\n"
            "    return read(self, name)\n"
            "metadata.PathDistribution.read_text = counted\n"
            "patch_all()\n"
            "import socket\n"
            "print(len(count) == len(set(count)) > 0, socket.socket.__module__)\n",
        ],
        {},
    ).stdout
    assert said == "True gevent._socket3\n"


def test_asyncio_is_imported_by_applications_alone() -> None:
    """Few need it, and each worker would import it at its start."""
    code = "import sys; from greenline.patch import patch_all; patch_all(); print(*sys.modules)"
    imported = support.run(["python", "-c", code], {}).stdout.split()
    assert "gevent.monkey" in imported
    assert "asyncio" not in imported


def test_the_same_plugins_are_found() -> None:
    """By group; and the original function is there again afterwards."""
    original = metadata.entry_points
    expected = set(original(group="console_scripts"))
    with gevent_patches():
        assert metadata.entry_points is not original
        assert set(metadata.entry_points(group="console_scripts")) == expected
        assert len(metadata.entry_points(group="console_scripts", name="flask")) == 1
    assert metadata.entry_points is original

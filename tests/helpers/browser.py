"""A headless Chromium: Debian's, unpacked where it is not installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from selenium import webdriver

from embedded import debian

SHELL, DATA, DRIVER = "chromium-headless-shell", "chromium-common", "chromium-driver"
PLACE = "usr/lib/chromium"


@contextmanager
def browser(
    width: int = 1200, height: int = 1600, *, dark: bool = False
) -> Iterator[webdriver.Chrome]:
    """
    Start it; its log has what goes wrong in a page.

    :raises ConfigError: it is not installed, and cannot be fetched.
    """
    installed, driver = shutil.which("chromium"), shutil.which("chromedriver")
    env = None
    if installed is None or driver is None:
        shell = debian.unpacked(SHELL)
        folder = shell / PLACE
        # Its data are in a package that is no library; it looks for them beside itself.
        for file in (debian.unpacked(DATA) / PLACE).iterdir():
            with suppress(FileExistsError):
                (folder / file.name).symlink_to(file)
        installed = str(folder / SHELL)
        driver = str(debian.unpacked(DRIVER) / "usr/bin/chromedriver")
        env = debian.environment(shell)
    options = webdriver.ChromeOptions()
    options.binary_location = installed
    # A sandbox needs more than the root of a container has.
    for argument in (
        "headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "hide-scrollbars",
        f"window-size={width},{height}",
    ):  # fmt: skip
        options.add_argument(f"--{argument}")
    if dark:
        options.add_argument("--blink-settings=preferredColorScheme=0")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options, webdriver.ChromeService(driver, env=env))
    try:
        yield running
    finally:
        running.quit()


def complaints(running: webdriver.Chrome) -> list[str]:
    """Return what the browser has logged: errors of scripts, what a policy has refused."""
    return [each["message"] for each in running.get_log("browser")]

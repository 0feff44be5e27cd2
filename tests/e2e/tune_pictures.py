"""
Make docs/pictures/tune.png: three pictures of the report of examples/tune.json.

``python -m tests.e2e.tune_pictures`` writes the report, and shows it in a browser.
"""

import tempfile
from pathlib import Path

from greenline.tune import report, results
from tests.helpers.browser import browser
from tests.helpers.support import CHECKOUT

SHOWN = ("rate", "pool", "shares")
# A column of the figures alone.
ONLY = f"""
document.body.replaceChildren(
  ...{list(SHOWN)}.map(name => document.querySelector(`#${{name}} figure`)).filter(Boolean))
document.documentElement.style.background = "#fff"
return Math.ceil(document.body.getBoundingClientRect().height)
"""


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder, browser(800, 1200) as chrome:
        page = Path(folder) / "report.html"
        report.write(results.read(CHECKOUT / "examples" / "tune.json"), page)
        chrome.get(page.as_uri())
        height = chrome.execute_script(ONLY)  # type: ignore[no-untyped-call]
        chrome.set_window_size(800, height)
        chrome.save_screenshot(str(CHECKOUT / "docs/pictures/tune.png"))


if __name__ == "__main__":
    main()

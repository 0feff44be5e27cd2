"""
Make docs/pictures/watch.png and top.svg: the page and ``greenline top`` while a pool is the limit.

``python -m tests.e2e.watch_pictures`` runs the service with a pool of a few connections for each
worker, asks it for more than they can answer, and takes the pictures.
"""

import io
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import sleep

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from embedded.mongo import Mongo
from embedded.postgres import temporary
from greenline.ops import screen, sources
from tests.e2e.hosting import hosting
from tests.helpers.browser import browser
from tests.helpers.support import CHECKOUT, Service, free_port

APP = "tests.e2e.watched_databases:app"
PICTURES = CHECKOUT / "docs/pictures"
CLIENTS, SECONDS = 24, 14
WIDTH, HEIGHT = 100, 100  # of the terminal
PATHS = (
    *["/postgres/books?s=0.12"] * 8, *["/postgres/orders?s=0.25"] * 3, "/mongo", *["/count"] * 10,
)  # fmt: skip


def main() -> None:
    """Write the pictures."""
    port, over = free_port(), Event()
    with (
        tempfile.TemporaryDirectory() as folder,
        temporary() as server,
        Mongo(Path(folder) / "mongo", durable=False) as mongo,
        hosting(
            APP, "-w", "2", URL=server.url, DATABASE_URL=server.url, URI=f"{mongo.url}pictures",
            GREENLINE_POOL="1", POSTGRES_POOL_SIZE="4", GREENLINE_SLOW_MS="700",
            GREENLINE_OPS_BIND=f"127.0.0.1:{port}", GREENLINE_SWITCH_INTERVAL_MS="0",
        ) as running,
        ThreadPoolExecutor(CLIENTS + 1) as clients,
        browser(1200, 1500) as chrome,
    ):  # fmt: skip
        asking = [clients.submit(_ask, running, number, over) for number in range(CLIENTS)]
        go = Path(folder) / "go"
        blocked = clients.submit(running.get, f"/block?file={go}")
        sleep(1.5)
        go.touch()
        blocked.result()
        running.get("/missing/book")
        chrome.get(f"http://127.0.0.1:{port}/")
        sleep(SECONDS)
        chrome.save_screenshot(str(PICTURES / "watch.png"))
        _draw_top(f"http://127.0.0.1:{port}", PICTURES / "top.svg")
        over.set()
        for each in asking:
            each.result()


def _draw_top(url: str, picture: Path) -> None:
    console = Console(width=WIDTH, height=HEIGHT, record=True, file=io.StringIO())
    console.print(screen.fitted(sources.state_of(url, None)(), console))
    # A picture in a page loads no fonts.
    form = re.sub(r"@font-face {{.*?}}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    picture.write_text(
        console.export_svg(title="greenline top", code_format=form, unique_id="top"),
        encoding="utf-8",
    )


def _ask(running: Service, number: int, over: Event) -> None:
    while not over.is_set():
        running.get(PATHS[number % len(PATHS)])
        number += 7


if __name__ == "__main__":
    main()

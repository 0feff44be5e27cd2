"""
The service, which holds back the answers to writes that are done.

It does so for as long as the folder HELD has a file "hold". An answer that is held back is a file
there, "<process id>-<the number in the request's query>".
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.wsgi import app

service = app.wsgi_app
folder = Path(os.environ["HELD"])


def holding(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Have the service answer, and hold the answer back."""
    statuses: list[str] = []

    def start(status: str, *more: Any) -> Any:
        statuses.append(status)
        return start_response(status, *more)

    answer: Iterable[bytes] = service(environ, start)
    if statuses[-1].startswith("201") and _is_holding():
        held = folder / f"{os.getpid()}-{environ['QUERY_STRING']}"
        held.touch()
        while _is_holding():
            time.sleep(0.02)
        held.unlink(missing_ok=True)  # its client may have sent it again, to here
    return answer


def _is_holding() -> bool:
    return (folder / "hold").exists()


app.wsgi_app = holding  # type: ignore[method-assign]

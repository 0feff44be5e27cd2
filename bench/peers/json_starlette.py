"""A small JSON object from Starlette."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def answer(request: Request) -> JSONResponse:
    """Answer."""
    return JSONResponse({"status": "ok"})


app = Starlette(routes=[Route("/", answer)])

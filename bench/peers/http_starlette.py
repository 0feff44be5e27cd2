"""The same answers as those of ``http_application``, from Starlette, as its users write them."""

from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bench.peers.http_application import VERSION, books, chunks

ETAG = f'"{VERSION}"'


async def answer(request: Request) -> JSONResponse:
    """Answer."""
    return JSONResponse({"status": "ok"})


async def conditional(request: Request) -> Response:
    """Answer 304 if the client has this version."""
    if request.headers.get("if-none-match") == ETAG:
        return Response(status_code=304, headers={"ETag": ETAG})
    return JSONResponse({"status": "ok"}, headers={"ETag": ETAG})


async def stream(request: Request) -> StreamingResponse:
    """Answer in chunks, without a thread for them."""

    async def each() -> AsyncIterator[bytes]:
        for chunk in chunks():
            yield chunk

    return StreamingResponse(each(), media_type="application/json")


async def item(request: Request) -> JSONResponse:
    """Answer with a variable of the path, an argument and a header."""
    return JSONResponse(
        {
            "number": request.path_params["number"],
            "name": request.query_params["name"],
            "request_id": request.headers["x-request-id"],
        }
    )


async def echo(request: Request) -> JSONResponse:
    """Answer with the JSON that was sent."""
    return JSONResponse(await request.json())


async def form(request: Request) -> JSONResponse:
    """Answer with two fields of a form and a cookie."""
    fields = await request.form()
    return JSONResponse(
        {
            "name": fields["name"],
            "city": fields["city"],
            "session": request.cookies["session"],
        }
    )


async def listed(request: Request) -> JSONResponse:
    """Answer with 46 kB."""
    return JSONResponse(books())


app = Starlette(
    routes=[
        Route("/", answer),
        Route("/async", answer),
        Route("/conditional", conditional),
        Route("/stream", stream),
        Route("/items/{number:int}", item),
        Route("/echo", echo, methods=["POST"]),
        Route("/form", form, methods=["POST"]),
        Route("/books", listed),
    ]
)

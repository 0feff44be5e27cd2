import asyncio


async def soon(function):
    asyncio.get_event_loop().call_soon(function)  # not: GL202


def application(environ, start_response):
    start_response("200 OK", [])
    asyncio.run(soon(print))
    return [b""]

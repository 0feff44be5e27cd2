from asyncio import get_event_loop, sleep


def application(environ, start_response):
    start_response("200 OK", [])
    return [get_event_loop().run_until_complete(sleep(0, b"fetched"))]  # expect: GL202

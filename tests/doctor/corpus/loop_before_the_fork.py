# facts: preload
import asyncio

asyncio.set_event_loop(asyncio.new_event_loop())  # expect: GL204


def application(environ, start_response):
    start_response("200 OK", [])
    return [str(asyncio.run(asyncio.sleep(0, 1))).encode()]

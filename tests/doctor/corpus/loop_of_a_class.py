import asyncio


class Client:
    loop = asyncio.new_event_loop()

    async def fetch(self):
        return "fetched"

    def get(self):
        return self.loop.run_until_complete(self.fetch())  # expect: GL201


def application(environ, start_response):
    start_response("200 OK", [])
    return [Client().get().encode()]

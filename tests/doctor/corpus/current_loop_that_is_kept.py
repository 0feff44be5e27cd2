import asyncio

from flask import Flask

app = Flask(__name__)


class Client:
    def __init__(self, loop=None):
        self.loop = loop or asyncio.get_event_loop()  # not: GL202

    async def fetch(self):
        return await self.loop.run_in_executor(None, len, "fetched")


async def fetched():
    return await Client().fetch()


@app.get("/")
def index():
    return str(asyncio.run(fetched()))

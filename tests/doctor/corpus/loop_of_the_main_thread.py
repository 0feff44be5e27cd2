import asyncio

from flask import Flask

app = Flask(__name__)
LOOP = asyncio.get_event_loop()


@app.get("/")
def index():
    async def fetch():
        return "fetched"

    return LOOP.run_until_complete(fetch())  # expect: GL201

import asyncio

from flask import Flask

app = Flask(__name__)
loop = asyncio.new_event_loop()


async def fetch():
    return "fetched"


@app.get("/")
def index():
    return loop.run_until_complete(fetch())  # expect: GL201

import asyncio

from flask import Flask

app = Flask(__name__)


@app.get("/")
def index():
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(asyncio.sleep(0, "fetched"))  # not: GL201
    finally:
        loop.close()

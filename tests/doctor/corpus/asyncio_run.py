import asyncio

from flask import Flask

app = Flask(__name__)


@app.get("/")
def index():
    return asyncio.run(asyncio.sleep(0, "fetched"))

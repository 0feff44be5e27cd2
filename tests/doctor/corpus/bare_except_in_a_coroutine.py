import asyncio

from flask import Flask

app = Flask(__name__)


async def fetched(reader):
    try:
        return await reader.read()
    except:  # not: GL211
        return b""


def request_headers(read):
    try:
        return read.generate_request_headers()
    except:  # not: GL211
        return {}


@app.get("/")
def index():
    return asyncio.run(fetched(asyncio.StreamReader()))

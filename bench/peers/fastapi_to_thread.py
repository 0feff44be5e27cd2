"""FastAPI with pymongo's blocking client in threads: what no. 1 compares its cure with."""

import asyncio
import os
from typing import Any

from fastapi import FastAPI, Response
from pymongo import MongoClient

from bench.peers.documents import (
    OPTIONS,
    MessageAnswer,
    MessageInput,
    StateAnswer,
    key,
    made,
    shown,
)

client: MongoClient[dict[str, Any]] = MongoClient(
    os.environ["MONGODB_URI"], maxPoolSize=int(os.environ["MONGODB_MAX_POOL_SIZE"]), **OPTIONS
)
database = client.get_default_database()
app = FastAPI()


@app.get("/states/{state_id}", response_model=StateAnswer)
async def get_state(state_id: str) -> Any:
    """Answer one state."""
    return shown(await asyncio.to_thread(database.states.find_one, key(state_id)))


@app.get("/messages/{message_id}", response_model=MessageAnswer)
async def get_message(message_id: str) -> Any:
    """Answer one message."""
    return shown(await asyncio.to_thread(database.messages.find_one, key(message_id)))


@app.post("/messages", response_model=MessageAnswer, status_code=201)
async def create_message(response: Response, message: MessageInput) -> Any:
    """Keep a message."""
    document = made(message)
    await asyncio.to_thread(database.messages.insert_one, document)
    response.headers["Location"] = f"/messages/{document['_id']}"
    return shown(document)

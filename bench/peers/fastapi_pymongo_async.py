"""FastAPI with pymongo's own asyncio client, as their documentation has it: the cure of no. 1."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from pymongo import AsyncMongoClient

from bench.peers.documents import (
    OPTIONS,
    MessageAnswer,
    MessageInput,
    StateAnswer,
    key,
    made,
    shown,
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """Hold the client for as long as the application runs."""
    size = int(os.environ["MONGODB_MAX_POOL_SIZE"])
    async with AsyncMongoClient(os.environ["MONGODB_URI"], maxPoolSize=size, **OPTIONS) as client:
        yield {"database": client.get_default_database()}


app = FastAPI(lifespan=lifespan)


@app.get("/states/{state_id}", response_model=StateAnswer)
async def get_state(request: Request, state_id: str) -> Any:
    """Answer one state."""
    return shown(await request.state.database.states.find_one(key(state_id)))


@app.get("/messages/{message_id}", response_model=MessageAnswer)
async def get_message(request: Request, message_id: str) -> Any:
    """Answer one message."""
    return shown(await request.state.database.messages.find_one(key(message_id)))


@app.post("/messages", response_model=MessageAnswer, status_code=201)
async def create_message(request: Request, response: Response, message: MessageInput) -> Any:
    """Keep a message."""
    document = made(message)
    await request.state.database.messages.insert_one(document)
    response.headers["Location"] = f"/messages/{document['_id']}"
    return shown(document)

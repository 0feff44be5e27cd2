"""A small JSON object from FastAPI, as its documentation has it."""

from fastapi import FastAPI

app = FastAPI()


@app.get("/")
async def answer() -> dict[str, str]:
    """Answer."""
    return {"status": "ok"}

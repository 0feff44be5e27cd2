"""The service, with what its workers count at /totals."""

import json

from app.wsgi import app
from greenline.telemetry import counters


@app.get("/totals")
def totals() -> dict[str, int]:
    return {json.dumps(key): value for key, value in counters.totals().items()}

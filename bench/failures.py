"""What a bench survives: it makes the run invalid, and the report tells it with what was found."""

import http.client
import subprocess

import psycopg2

from bench import hey, hey_build
from bench.servers import ServerError
from greenline.errors import GreenlineError

FAILURES = (
    ServerError,
    hey.HeyError,
    hey_build.BuildError,
    subprocess.TimeoutExpired,
    psycopg2.Error,
    GreenlineError,
    OSError,
    http.client.HTTPException,
)

"""What a bench survives: it makes the run invalid, and the report tells it with what was found."""

import http.client
import subprocess

import psycopg2
from pymongo.errors import PyMongoError

from bench import hey, hey_build, load
from bench.servers import ServerError
from greenline.errors import GreenlineError

FAILURES = (
    ServerError,
    hey.HeyError,
    hey_build.BuildError,
    load.LoadError,
    PyMongoError,
    subprocess.TimeoutExpired,
    psycopg2.Error,
    GreenlineError,
    OSError,
    http.client.HTTPException,
)

"""
Our service's own states and messages in threads: the same Flask, API and repositories.

What they are handed is a plain MongoClient, since ours is for green threads: no request has a
deadline here, and none is counted.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymongo import MongoClient
from pymongo.database import Database

from app.api import messages, problems, resource, states
from app.api.operations import Routes
from app.service import ObjectIdConverter
from app.store.messages import Messages
from app.store.ports import Document
from app.store.states import States
from greenline.flask import Flask
from greenline.mongo.errors import translated
from greenline.mongo.retry import Repeating


class Threaded(Repeating):
    """The port ``Mongo`` over the client that everybody has."""

    def __init__(self, client: "MongoClient[Document]") -> None:
        self._database = client.get_default_database()

    @contextmanager
    def database(self, *, repeatable: bool = False) -> Iterator["Database[Document]"]:
        """Lend the database; errors come out as ours."""
        with translated(repeatable=repeatable):
            yield self._database


def make() -> Flask:
    """Return the application."""
    size = int(os.environ["MONGODB_MAX_POOL_SIZE"])
    mongo: Any = Threaded(MongoClient(os.environ["MONGODB_URI"], maxPoolSize=size, tz_aware=True))
    made = Flask(__name__, static_folder=None)
    made.url_map.converters["objectid"] = ObjectIdConverter
    problems.register(made)
    routes = Routes(made, guard=lambda scope, view: view)
    resource.add(routes, states.resource(States(mongo)))
    resource.add(routes, messages.resource(Messages(mongo)))
    return made


app = make()

"""The commands of ``flask``: they open what they need themselves and need no worker."""

from flask import Flask

from app.commands.db import db
from app.commands.indexes import indexes
from app.commands.keys import keys


def create_app() -> Flask:
    """Return an application that only carries the commands; ``.flaskenv`` points here."""
    app = Flask(__name__, static_folder=None)
    app.cli.add_command(db)
    app.cli.add_command(indexes)

    app.cli.add_command(keys)
    return app

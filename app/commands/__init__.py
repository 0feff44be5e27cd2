"""The commands of ``flask``: they open what they need themselves and need no worker."""

from flask import Flask

from app.commands.db import db


def create_app() -> Flask:
    """Return an application that only carries the commands; ``.flaskenv`` points here."""
    app = Flask(__name__, static_folder=None)
    app.cli.add_command(db)
    return app

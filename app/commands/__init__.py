"""The commands of ``flask``. They open their own connections and need no worker."""

from flask import Flask

from app.commands import document_files  # noqa: F401  (it adds two commands to documents)
from app.commands.books import books
from app.commands.db import db
from app.commands.documents import documents
from app.commands.indexes import indexes
from app.commands.keys import keys


def create_app() -> Flask:
    """Return an application that has only the commands; ``.flaskenv`` names this function."""
    app = Flask(__name__, static_folder=None)
    app.cli.add_command(books)
    app.cli.add_command(db)
    app.cli.add_command(documents)
    app.cli.add_command(indexes)
    app.cli.add_command(keys)
    return app

import signal

import click
from flask import Flask

app = Flask(__name__)


@app.cli.command()
def export():
    signal.signal(signal.SIGALRM, print)  # not: GL209
    signal.alarm(60)
    click.echo("done")

"""Call greenline check-deploy, and read what it tells."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from greenline.cli import main
from tests.deploy.configurations import Configuration
from tests.helpers.budget import NOTHING
from tests.helpers.support import CHECKOUT

# What a person's shell may have set.
UNSET = {**NOTHING, "REQUEST_TIMEOUT": None, "GUNICORN_CMD_ARGS": None}
SERVICE = {"DATABASE_URL": "postgresql://h/d", "MONGODB_URI": "mongodb://h"}
OURS = (
    "--nginx", str(CHECKOUT / "deploy" / "nginx.conf"),
    "--gunicorn", str(CHECKOUT / "gunicorn.conf.py"),
)  # fmt: skip


def check(*arguments: object, **environ: Any) -> Result:
    told = ["check-deploy", *map(str, arguments)]
    return CliRunner().invoke(main, told, env={**UNSET, **environ})


def check_files(configuration: Configuration, folder: Path, *arguments: str) -> Result:
    nginx, gunicorn = configuration.write(folder)
    return check("--nginx", nginx, "--gunicorn", gunicorn, *arguments, **configuration.environ)


def told(done: Result, folder: Path) -> list[tuple[str, str, str]]:
    """Return level, code and place of what is told, without the remark that always is."""
    assert done.exit_code < 2, done.output
    found = json.loads(done.stdout)
    assert [one["code"] for one in found].count("stop-timeout") == 1
    return [
        (one["level"], one["code"], one["where"].replace(f"{folder}/", ""))
        for one in found
        if one["code"] != "stop-timeout"
    ]

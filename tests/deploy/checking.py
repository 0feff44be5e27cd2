"""Call greenline check-deploy, and read what it prints."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from embedded import debian
from embedded.nginx import TEMPORARY
from greenline.cli import main
from tests.deploy.configurations import Configuration
from tests.helpers.budget import NOTHING
from tests.helpers.support import CHECKOUT, free_port

# What a person's shell may have set.
UNSET = {**NOTHING, "REQUEST_TIMEOUT": None, "GUNICORN_CMD_ARGS": None}
SERVICE = {"DATABASE_URL": "postgresql://h/d", "MONGODB_URI": "mongodb://h"}
OURS = (
    "--nginx", str(CHECKOUT / "deploy" / "nginx.conf"),
    "--gunicorn", str(CHECKOUT / "gunicorn.conf.py"),
)  # fmt: skip


def check(*arguments: object, **environ: Any) -> Result:
    options = ["check-deploy", *map(str, arguments)]
    return CliRunner().invoke(main, options, env={**UNSET, **environ})


def check_files(configuration: Configuration, folder: Path, *arguments: str) -> Result:
    nginx, gunicorn = configuration.write(folder)
    return check("--nginx", nginx, "--gunicorn", gunicorn, *arguments, **configuration.environ)


def reported(done: Result, folder: Path) -> list[tuple[str, str, str]]:
    """Return level, code and place of the findings, without the remark that always stands."""
    assert done.exit_code < 2, done.output
    found = json.loads(done.stdout)
    assert [one["code"] for one in found].count("stop-timeout") == 1
    return [
        (one["level"], one["code"], one["where"].replace(f"{folder}/", ""))
        for one in found
        if one["code"] != "stop-timeout"
    ]


TITLE = re.compile(
    r"^# (?:(?P<file>\S+), (?:in place of lines? (?P<first>\d+)(?:-(?P<last>\d+))?|at its end)"
    r"|the environment of the service):$",
    re.MULTILINE,
)


def pasted(configuration: Configuration, folder: Path) -> Configuration:
    """Return *configuration*, written to *folder*, with the corrected lines where they belong."""
    printed = check_files(configuration, folder).stdout
    assert "Not corrected" not in printed, printed
    _, found, corrected = printed.partition("\n\nCorrected lines, to paste:\n")
    assert found, printed
    files, environ = configuration.files, dict(configuration.environ)
    titles = list(TITLE.finditer(corrected))
    # From the end, so that the numbers of the lines before stay right.
    for title, following in reversed([*zip(titles, [*titles[1:], None], strict=True)]):
        text = corrected[title.end() : following and following.start()].strip("\n")
        if title["file"] is None:
            environ |= dict(line.split("=", 1) for line in text.splitlines())
            continue
        name = title["file"].removeprefix(f"{folder}/")
        lines = files[name].splitlines()
        first = int(title["first"] or len(lines) + 1) - 1
        lines[first : int(title["last"] or first + 1)] = text.splitlines()
        files[name] = "\n".join(lines) + "\n"
    return Configuration(files, files.pop("gunicorn.conf.py"), environ)


def refused_by_nginx(configuration: Configuration, folder: Path) -> str:
    """Return what nginx says against the files, empty if it accepts them."""
    nginx, _ = configuration.write(folder)
    command, env = debian.program("nginx")
    # Its own folders and the port 80 are root's.
    folders = " ".join(f"{one}_temp_path {folder};" for one in TEMPORARY)
    text = re.sub(r"listen \d+", f"listen 127.0.0.1:{free_port()}", nginx.read_text())
    tested = folder / "tested.conf"
    tested.write_text(text.replace("http {", f"http {{ access_log off; {folders}", 1))
    log = folder / "error.log"
    options = ["-t", "-q", "-p", folder, "-e", log, "-c", tested, "-g", f"pid {folder}/pid;"]
    done = subprocess.run([command, *options], env=env, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""

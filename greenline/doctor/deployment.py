"""Run the checks of ``greenline check-deploy`` on the files of an application's deployment."""

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

from greenline.deploy.findings import Level
from greenline.doctor.codes import DEPLOYMENT, PRELOADED, UNCHECKED_DEPLOYMENT
from greenline.doctor.findings import Finding
from greenline.doctor.imports import command
from greenline.doctor.project import GUNICORN, Project

NGINX = "deploy/nginx.conf"  # check-deploy's default
LIMIT_S = 60.0
LEFT_OUT = {"worker-class"}  # an application that is examined may have another worker still
MAY_BE_UNSET = {"no-deadline", "heartbeat-folder"}  # without a value it contradicts nothing yet


def findings(project: Project) -> Iterator[Finding]:
    """
    Yield the errors and warnings of ``check-deploy``.

    The configuration is executed, in a child. Without one, and without a deploy/nginx.conf, the
    environment is checked alone. preload_app is found by its value, whatever the expression.
    """
    gunicorn = shown = project.configuration
    if gunicorn == GUNICORN and not (project.folder / gunicorn).exists():
        gunicorn, shown = os.devnull, ""
    nginx = NGINX if (project.folder / NGINX).exists() else os.devnull
    options = ["--json", "--nginx", nginx, "--gunicorn", gunicorn]
    try:
        done = subprocess.run(
            command("from greenline.cli import main; main()", "check-deploy", *options),
            cwd=project.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except subprocess.TimeoutExpired:
        reason = f"{gunicorn} did not end in {LIMIT_S:.0f} s"
        yield Finding(UNCHECKED_DEPLOYMENT, shown, 0, reason)
        return
    try:
        found = json.loads(done.stdout)
    except ValueError:
        *_, last = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        reason = last.removeprefix("Error: ").removeprefix(f"{gunicorn}: ")
        yield Finding(UNCHECKED_DEPLOYMENT, shown, 0, reason)
        return
    for each in found:
        if each["where"] == os.devnull:  # gunicorn's defaults, and what is not set
            continue
        if each["level"] != Level.REMARK and each["code"] not in LEFT_OUT:
            yield _finding(project, each)


def _finding(project: Project, found: dict[str, Any]) -> Finding:
    is_unset = found["code"] in MAY_BE_UNSET and "not set" in found["what"]
    code = DEPLOYMENT._replace(
        level=Level.REMARK if is_unset else Level(found["level"]),
        why=_sentence(found["why"]),
        fix=_sentence(found["fix"]),
    )
    if found["code"] == "preload":
        code = PRELOADED
    path, _, line = found["where"].rpartition(":")
    what = f"{found['what']} [{found['code']}]"
    if line.isdigit():
        return Finding(code, project.shown(project.folder / path), int(line), what)
    if (project.folder / found["where"]).exists():
        return Finding(code, found["where"], 0, what)
    return Finding(code, "", 0, f"{found['where']}: {what}")  # a variable of the environment


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."

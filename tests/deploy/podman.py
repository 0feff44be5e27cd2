"""
Build the image with podman, and run containers of it on the host's network.

1. Where the project's neighbour ``shared`` is, its script makes the base image, and podman when
   that is missing; elsewhere both have to be had in the usual ways.
2. Each container has a name of its own, and only that is stopped and removed.
3. Images stay: the next build begins with their layers.
"""

import json
import os
import resource
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.support import BIN, CHECKOUT, IS_LONG, Service, free_port, wait_until

BASE = "docker.io/library/python:3.11-slim-bookworm"
BASE_IMAGE = CHECKOUT.parent / "shared/tools/base-image.sh"
IMAGE, DEV_IMAGE = "localhost/greenline-test", "localhost/greenline-test-dev"
# Docker's format: the other one has no health checks.
ENVIRON = {**os.environ, "BUILDAH_FORMAT": "docker"}
STOP_TIMEOUT_S = 40  # as stop_grace_period in deploy/compose.yml


def require() -> None:
    """Skip a test where there is no podman or no base image, and say why."""
    if not IS_LONG:
        pytest.skip("building an image takes minutes: GREENLINE_LONG_TESTS=1, or make test-deploy")
    if os.geteuid() != 0:
        pytest.skip("podman is used as root here")
    if BASE_IMAGE.exists():
        command = ["bash", str(BASE_IMAGE), "base"]
    else:
        command = ["sh", "-c", f"podman image exists {BASE} || podman pull --quiet {BASE}"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        why = said.decode().strip().splitlines()[-1:] or [str(error)]
        pytest.skip(f"no base image, or no podman: {why[0]}")


def build(tag: str, folder: Path = CHECKOUT, *options: str) -> None:
    """Build the image of *folder* with the certificates and the pip settings of this machine."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write(_pip_conf())
        conf.flush()
        done = subprocess.run(
            [
                "podman", "build", "--pull=never", "--isolation=chroot", "--network=host",
                "-v", "/etc/ssl/certs:/etc/ssl/certs:ro", "-v", f"{conf.name}:/etc/pip.conf:ro",
                *options, "-t", tag, str(folder),
            ],
            env=ENVIRON, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]


def _pip_conf() -> str:
    """Return where pip finds packages here, and by which certificates, as a file of its own."""
    said = subprocess.run(
        [BIN / "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    options = {}
    for line in said.splitlines():
        name, _, value = line.partition("=")
        options[name.rpartition(".")[2]] = value.strip("'")
    options.pop("find-links", None)  # a folder of this machine
    return "\n".join(["[global]", *(f"{name} = {value}" for name, value in options.items())])


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run podman."""
    done = subprocess.run(
        ["podman", *arguments], capture_output=True, text=True, timeout=120, env=ENVIRON
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def inspect(image: str) -> dict[str, Any]:
    """Return what podman knows of *image*."""
    found: dict[str, Any] = json.loads(podman("image", "inspect", image).stdout)[0]
    return found


def run_options() -> list[str]:
    """Return the options that a container needs on any machine that we know."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # As many as there are: podman inside of a machine of its own may not raise them.
    limits = ["--ulimit=nproc=4000:4000", *([f"--ulimit=nofile={files}:{files}"] * (files > 0))]
    # Nothing may be written but /dev/shm: not even the places that podman would put into memory.
    read_only = ["--read-only", "--read-only-tmpfs=false"]
    return ["--network=host", "--health-interval=disable", *limits, *read_only]


def run(
    image: str, *command: str, environ: Mapping[str, str], options: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    """Run a *command* in a container of *image* to its end."""
    sets = [f"--env={name}={value}" for name, value in environ.items()]
    return podman("run", "--rm", *run_options(), *sets, *options, image, *command, check=False)


@dataclass
class Container(Service):
    """A container with the service; its process here is podman's, which ends as it does."""

    name: str = ""

    def stop(self) -> int:
        """Stop it as ``docker stop --time 40`` does, and return the service's exit status."""
        podman("stop", f"--time={STOP_TIMEOUT_S}", self.name, check=False)
        return self.process.wait(timeout=60)

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to its first process."""
        podman("kill", f"--signal={number.name}", self.name)

    def execute(self, *command: str) -> str:
        """Run a *command* in it."""
        return podman("exec", self.name, *command).stdout

    def is_healthy(self) -> bool:
        """Ask as the image's HEALTHCHECK does."""
        return podman("healthcheck", "run", self.name, check=False).returncode == 0


@contextmanager
def container(
    image: str,
    *command: str,
    environ: Mapping[str, str],
    options: tuple[str, ...] = (),
    wait: bool = True,
) -> Iterator[Container]:
    """Run a container; *wait* until its service is ready."""
    port, name = free_port(), f"greenline-test-{uuid.uuid4().hex[:12]}"
    sets = [f"--env={key}={value}" for key, value in {**environ, "PORT": str(port)}.items()]
    with tempfile.NamedTemporaryFile(prefix="greenline-log-") as log:
        process = subprocess.Popen(
            ["podman", "run", f"--name={name}", *run_options(), *sets, *options, image, *command],
            stdout=log, stderr=log, env=ENVIRON,
        )  # fmt: skip
        running = Container(process, port, Path(log.name), name)
        try:
            if wait:
                wait_until(
                    lambda: running.is_ready() or process.poll() is not None, "the container"
                )
                assert process.poll() is None, running.log
            yield running
        finally:
            podman("rm", "--force", "--time=0", name, check=False)
            process.wait(timeout=60)

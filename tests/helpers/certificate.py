"""A certificate for the tests of TLS, which its clients trust."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="there is no openssl to make a key"
)


def certify(folder: Path) -> tuple[tuple[str, str], ssl.SSLContext]:
    """Return gunicorn's arguments for TLS with a new key in *folder*, and a client's context."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    name = "-addext subjectAltName=DNS:localhost"
    subprocess.run(
        [*command.split(), *name.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    trust = ssl.create_default_context(cafile=str(certificate))
    trust.check_hostname = False
    return (f"--certfile={certificate}", f"--keyfile={key}"), trust

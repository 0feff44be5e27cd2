"""The settings to copy, and what greenline check-deploy says of them."""

from pathlib import Path

import pytest

from greenline.tune.configuration import gunicorn, nginx
from tests.deploy.checking import check_files, reported
from tests.deploy.configurations import Configuration
from tests.helpers import tuned

NGINX = """\
events {{}}
http {{
    upstream app {{
        server unix:/run/app/http.sock max_fails=0;
        server unix:/run/app/http.sock max_fails=0 weight=1;
        {upstream}
    }}
    server {{
        location / {{
            proxy_pass http://app;
            {location}
        }}
    }}
}}
"""
OF_KEEPALIVE = {"keepalive-unset"}
OF_DEADLINES = {"deadline-order", "drain-order"}


@pytest.mark.parametrize("request_s", ["", "90"])
def test_what_is_to_copy_keeps_connections_and_deadlines(
    request_s: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the defaults of nginx and gunicorn there are findings of each."""
    monkeypatch.setenv("REQUEST_TIMEOUT", request_s)
    lines = {block: "\n".join(found) for block, found in nginx(tuned.result()).items()}
    codes = {}
    for name, blocks in {"defaults": dict.fromkeys(lines, ""), "tune": lines}.items():
        configuration = Configuration(
            {"nginx.conf": NGINX.format(**blocks)},
            gunicorn(tuned.result()) if name == "tune" else "",
            {"REQUEST_TIMEOUT": request_s},
        )
        (folder := tmp_path / name).mkdir()
        found = reported(check_files(configuration, folder, "--json"), folder)
        codes[name] = {code for _, code, _ in found} & (OF_KEEPALIVE | OF_DEADLINES)
    assert codes["tune"] == set()
    assert codes["defaults"] == OF_KEEPALIVE | (OF_DEADLINES if request_s else set())

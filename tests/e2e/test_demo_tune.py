"""``make demo-tune``: greenline tune for the service, on the embedded servers."""

import subprocess
import sys
from pathlib import Path

import pytest

from greenline.tune import results
from tests.helpers.forms import in_the_long_form
from tests.helpers.support import CHECKOUT, IS_LONG, environ, open_folder


def demo(data: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "embedded.tune", *arguments],
        cwd=CHECKOUT,
        env=environ({"GREENLINE_DATA": str(data)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )


@in_the_long_form
def test_with_too_little_time_it_says_how_much_is_needed() -> None:
    """After the servers have started and the service has answered each URL of the mix."""
    with open_folder() as data:
        done = demo(data, "--total", "20")
        assert done.returncode == 1
        assert "too little time for three rounds: 20 s are given" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (data / "tune" / "result.json").exists()


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 measures for five minutes")
def test_the_settings_of_the_service_are_found_and_proved() -> None:
    """What it leaves is the report, the figures and the settings."""
    with open_folder() as data:
        done = demo(data)
        assert (data / "tune" / "report.html").stat().st_size > 10_000, done.stderr
        found = results.read(data / "tune" / "result.json")
        assert found.recommended("pool") is not None, done.stderr
        proof = found.verification
        assert proof is not None
        assert proof.ours is not None
        assert proof.against_defaults is not None
        assert abs(proof.within) <= 0.15, done.stdout
        assert proof.ours.good_rate >= 0.97 * proof.against_defaults.good_rate, done.stdout
        assert proof.ours.connections < proof.against_defaults.connections
        ours, theirs = (
            one.setting * one.memory_mib for one in (proof.ours, proof.against_defaults)
        )
        assert ours < theirs
        assert found.total_s < 300
        assert "POSTGRES_POOL_SIZE=" in (data / "tune" / "gunicorn.conf.py").read_text()

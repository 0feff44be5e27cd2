"""The ports that `make serve` takes."""

import socket
import sys

import pytest

from embedded import checks
from tests.helpers.support import free_port


@pytest.mark.skipif(sys.platform != "linux", reason="there is no name without a file")
def test_two_runs_have_two_ports_for_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while neither of them listens yet; one that has ended leaves its port."""
    monkeypatch.setattr(checks, "METRICS_PORT", free_port())
    first, claim = checks.metrics_port()
    other, other_claim = checks.metrics_port()
    assert first == checks.METRICS_PORT != other
    claim.close()
    again, claim = checks.metrics_port()
    assert again == first
    claim.close()
    other_claim.close()


def test_a_port_on_which_a_process_listens_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever that process is."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(checks, "METRICS_PORT", taken.getsockname()[1])
        port, claim = checks.metrics_port()
        claim.close()
    assert port != checks.METRICS_PORT

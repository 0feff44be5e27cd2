"""The names of deployments, by which their slot tables are found."""

import pytest

from greenline.mongo.host import deployment_at, deployment_of


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("mongodb://me:secret@B:27018,a/d?x=1", "mongodb://a:27017,b:27018"),
        ("mongodb://a", "mongodb://a:27017"),
        ("mongodb://[::1]:1/", "mongodb://::1:1"),
        ("mongodb+srv://me:secret@DB.example/", "mongodb+srv://db.example"),
        ("mongodb://a:no", "mongodb://a:no"),
    ],
    ids=["hosts", "default port", "IPv6", "srv", "wrong"],
)
def test_a_deployment_is_its_hosts_and_ports(uri: str, name: str) -> None:
    """Neither a password, nor an order of the hosts, nor the port left out makes another one."""
    assert deployment_of(uri) == name


def test_a_client_of_the_application_has_the_same_name() -> None:
    """By host and port instead of a URI."""
    assert deployment_at({("b", 27018), ("A", 27017)}) == deployment_of("mongodb://a,b:27018")

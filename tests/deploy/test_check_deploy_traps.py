"""greenline check-deploy: each trap, as one change of what is in order, is told by its line."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.deploy.checking import check_files, told
from tests.deploy.configurations import GOOD


class Break(NamedTuple):
    """*new* for *old* in a file of a good configuration; the finding is where *place* is then."""

    file: str
    old: str
    new: str
    code: str
    place: str


def line_of(text: str, place: str) -> int:
    assert place in text, place
    return text[: text.index(place)].count("\n") + 1


ERRORS = {
    "nginx keeps idle connections as long as gunicorn": Break(
        "nginx.conf", "keepalive_timeout 4s", "keepalive_timeout 5s", "keepalive-order",
        "keepalive_timeout 5s"),
    "nginx keeps them for its default of 60 s": Break(
        "nginx.conf", "        keepalive_timeout 4s;\n", "", "keepalive-order", "upstream app"),
    "gunicorn keeps them for its default of 2 s": Break(
        "gunicorn.conf.py", "\nkeepalive = 5\n", "\n", "keepalive-order", "keepalive_timeout 4s"),
    "a keepalive that outlasts a stop": Break(
        "gunicorn.conf.py", "\nkeepalive = 5", "\nkeepalive = 35", "keepalive-stop",
        "keepalive = 35"),
    "a stop that is shorter than a request": Break(
        "gunicorn.conf.py", "graceful_timeout = 35", "graceful_timeout = 30", "drain-order",
        "graceful_timeout"),
    "nginx gives up before the request's deadline": Break(
        "nginx.conf", "proxy_read_timeout 35s", "proxy_read_timeout 30s", "deadline-order",
        "proxy_read_timeout"),
    "a POST is sent again": Break(
        "nginx.conf", "error timeout;", "error timeout non_idempotent;", "retried-writes",
        "proxy_next_upstream"),
    "a refusal is asked elsewhere": Break(
        "nginx.conf", "error timeout;", "error timeout http_503;", "retried-refusals",
        "proxy_next_upstream"),
    "a death takes the only server out": Break(
        "nginx.conf", " max_fails=0 weight=1;", " weight=1;", "max-fails", "http.sock weight"),
    "nginx asks another socket": Break(
        "gunicorn.conf.py", "app/http.sock", "app/other.sock", "address", "upstream app"),
    "the client chooses its address": Break(
        "nginx.conf", "            proxy_set_header X-Forwarded-For $remote_addr;\n", "",
        "no-x-forwarded-for", "proxy_set_header"),
    "the client says what it likes": Break(
        "nginx.conf", "X-Forwarded-For $remote_addr", "X-Forwarded-For $http_x_forwarded_for",
        "client-x-forwarded-for", "proxy_set_header X-Forwarded-For"),
    "before its own address": Break(
        "nginx.conf", "X-Forwarded-For $remote_addr",
        'X-Forwarded-For "$http_x_forwarded_for, $remote_addr"', "client-x-forwarded-for",
        "proxy_set_header X-Forwarded-For"),
    "the client chooses its scheme": Break(
        "nginx.conf", "X-Forwarded-Proto $scheme", "X-Forwarded-Proto ${http_x_forwarded_proto}",
        "client-x-forwarded-proto", "proxy_set_header X-Forwarded-Proto"),
    "everybody may be a proxy": Break(
        "nginx.conf", "listen 80;", "listen 80; set_real_ip_from ::/0;", "real-ip-everybody",
        "listen 80"),
    "another kind of worker": Break(
        "gunicorn.conf.py", "greenline.worker.GreenWorker", "gevent", "worker-class",
        "worker_class"),
    "everything is opened before the fork": Break(
        "gunicorn.conf.py", "preload_app = False", "preload_app = True", "preload", "preload_app"),
}  # fmt: skip
WARNINGS = {
    "connections are not kept": Break(
        "nginx.conf", "            proxy_http_version 1.1;\n", "", "keepalive-unused",
        "proxy_set_header Connection"),
    "they are closed after each answer": Break(
        "nginx.conf", 'Connection ""', "Connection close", "keepalive-unused", "Connection close"),
    "in capitals": Break(
        "nginx.conf", 'Connection ""', "Connection Close", "keepalive-unused", "Connection Close"),
    "nginx asks nobody else": Break(
        "nginx.conf", "error timeout;", "off;", "not-retried", "proxy_next_upstream off"),
    "nor a second time": Break(
        "nginx.conf", "error timeout;", "error timeout; proxy_next_upstream_tries 1;",
        "not-retried", "proxy_next_upstream_tries"),
    "gunicorn closes each": Break(
        "gunicorn.conf.py", "\nkeepalive = 5", "\nkeepalive = 0", "keepalive-refused",
        "keepalive = 0"),
    "nobody says whether they are kept": Break(
        "nginx.conf", "        keepalive 64;\n", "", "keepalive-untold", "upstream app"),
    "one server line": Break(
        "nginx.conf", "        server unix:/run/app/http.sock max_fails=0 weight=1;\n", "",
        "single-server", "upstream app"),
    "one of two lines is down": Break(
        "nginx.conf", "max_fails=0 weight=1", "max_fails=0 down", "single-server", "upstream app"),
    "a slow upload reaches the worker": Break(
        "nginx.conf", "proxy_request_buffering on", "proxy_request_buffering off", "unbuffered",
        "proxy_request_buffering"),
    "a slow download reaches it": Break(
        "nginx.conf", "proxy_buffering on", "proxy_buffering off", "unbuffered",
        "proxy_buffering"),
    "bodies without a limit": Break(
        "nginx.conf", "client_max_body_size 1m", "client_max_body_size 0", "body-unlimited",
        "client_max_body_size"),
    "bodies that the service refuses": Break(
        "nginx.conf", "client_max_body_size 1m", "client_max_body_size 1g", "body-limit",
        "client_max_body_size"),
    "an address that begins with the client's": Break(
        "nginx.conf", "X-Forwarded-For $remote_addr", "X-Forwarded-For $proxy_add_x_forwarded_for",
        "appended-for", "proxy_set_header X-Forwarded-For"),
    "an address that begins with it behind a balancer that lets X-Real-IP through": Break(
        "nginx.conf", "X-Forwarded-For $remote_addr",
        "X-Forwarded-For $proxy_add_x_forwarded_for; set_real_ip_from 10.0.0.0/8", "appended-for",
        "proxy_set_header X-Forwarded-For"),
    "an address that nobody tells": Break(
        "nginx.conf", "X-Forwarded-For $remote_addr", 'X-Forwarded-For ""', "no-x-forwarded-for",
        "proxy_set_header X-Forwarded-For"),
    "an id of the client's": Break(
        "nginx.conf", "X-Request-Id $request_id", "X-Request-Id $http_x_request_id",
        "client-x-request-id", "proxy_set_header X-Request-Id"),
    "a time that the worker does not read": Break(
        "nginx.conf", "t=$msec", "$msec", "unread-x-request-start", "proxy_set_header X-Request-S"),
    "a host of nginx's making": Break(
        "nginx.conf", "            proxy_set_header Host $host;\n", "", "no-host",
        "proxy_set_header"),
    "a host of the client's making": Break(
        "nginx.conf", "proxy_set_header Host $host;", "proxy_set_header Host $http_host;",
        "client-host", "proxy_set_header Host $http_host"),
    "a scheme that nobody tells": Break(
        "nginx.conf", "            proxy_set_header X-Forwarded-Proto $scheme;\n", "",
        "no-x-forwarded-proto", "proxy_set_header"),
    "two logs without a common id": Break(
        "nginx.conf", "            proxy_set_header X-Request-Id $request_id;\n", "",
        "no-x-request-id", "proxy_set_header"),
    "a queue that nobody measures": Break(
        "nginx.conf", "            proxy_set_header X-Request-Start t=$msec;\n", "",
        "no-x-request-start", "proxy_set_header"),
    "what failed is done again": Break(
        "nginx.conf", "error timeout;", "error timeout http_502;", "retried-failures",
        "proxy_next_upstream"),
    "a page in the place of Retry-After": Break(
        "nginx.conf", "proxy_intercept_errors off", "proxy_intercept_errors on", "replaced-503",
        "proxy_intercept_errors"),
    "a heartbeat for a limit": Break(
        "gunicorn.conf.py", "\ntimeout = 30", "\ntimeout = 120", "heartbeat", "timeout = 120"),
    "no heartbeat": Break(
        "gunicorn.conf.py", "\ntimeout = 30", "\ntimeout = 0", "heartbeat", "timeout = 0"),
    "a heartbeat on a disk": Break(
        "gunicorn.conf.py", "/dev/shm", "/var/tmp", "heartbeat-folder", "worker_tmp_dir"),
    "idle connections take all places": Break(
        "nginx.conf", "keepalive 64", "keepalive 4000", "idle-places", "keepalive 4000"),
    "nginx drops clients": Break(
        "nginx.conf", "worker_connections 16384", "worker_connections 768", "nginx-connections",
        "worker_connections"),
    "nginx has too few descriptors": Break(
        "nginx.conf", "worker_rlimit_nofile 65536;", "", "nginx-descriptors",
        "worker_connections"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ERRORS, *WARNINGS])
def test_one_broken_thing_is_one_finding(name: str, tmp_path: Path) -> None:
    """By its line, with its level in the exit status; what is in order around it is left alone."""
    one = {**ERRORS, **WARNINGS}[name]
    configuration = GOOD["one host"].changed(one.file, one.old, one.new)
    files = configuration.files
    file = next(file for file, text in files.items() if one.place in text)
    level = "error" if name in ERRORS else "warning"

    done = check_files(configuration, tmp_path, "--json")

    place = f"{file}:{line_of(files[file], one.place)}"
    assert told(done, tmp_path) == [(level, one.code, place)]
    assert done.exit_code == (level == "error")


@pytest.mark.parametrize(
    ("environ", "level", "code", "place"),
    [
        pytest.param(
            {"GREENLINE_PROXY_KEEPALIVE": "1"}, "error", "proxy-keepalive", "nginx.conf:11",
            id="a proxy that is told to give up earlier than it does"),
        pytest.param(
            {"DRAIN_DELAY": "3"}, "error", "drain-order", "gunicorn.conf.py:6",
            id="a drain that eats the requests' time"),
        pytest.param(
            {"DRAIN_DELAY": "31", "REQUEST_TIMEOUT": "0.5"}, "error", "keepalive-stop",
            "gunicorn.conf.py:5", id="a drain that eats the idle connections' time"),
        pytest.param(
            {"REQUEST_TIMEOUT": ""}, "warning", "no-deadline", "gunicorn.conf.py",
            id="no deadline that anybody knows of"),
        pytest.param(
            {"GREENLINE_MAX_BODY_BYTES": "2097152"}, "warning", "body-limit", "nginx.conf:15",
            id="bodies that nginx refuses"),
        pytest.param(
            {"DATABASE_URL": "postgresql://h/d?options=-c%20statement_timeout%3D60000"},
            "warning", "statement-order", "DATABASE_URL",
            id="statements that outlive their request"),
        pytest.param(
            {"DATABASE_URL": "postgresql://h/d?options=-cstatement_timeout%3D0"},
            "warning", "statement-order", "DATABASE_URL", id="statements without an end"),
        pytest.param(
            {"GUNICORN_CMD_ARGS": "--keep-alive 4"}, "error", "keepalive-order", "nginx.conf:11",
            id="a command line that wins over the file"),
    ],
)  # fmt: skip
def test_the_environment_counts(
    environ: dict[str, str], level: str, code: str, place: str, tmp_path: Path
) -> None:
    """What is in order in the files may be undone by a variable."""
    good = GOOD["one host"]
    done = check_files(replace(good, environ={**good.environ, **environ}), tmp_path, "--json")
    assert told(done, tmp_path) == [(level, code, place)]
    assert done.exit_code == (level == "error")


TWO = """    proxy_connect_timeout 1500ms;
    upstream app {
        least_conn;
        server 10.0.0.1:8000 max_fails=2 fail_timeout=5s;
"""
ONE = "    upstream app {\n"
# Where nobody knows which of nginx's servers is this gunicorn, all of them are looked at.
STRANGERS = [("warning", "keepalive-untold"), ("warning", "single-server")]


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        pytest.param(
            "gunicorn.conf.py", '"10.0.0.0/24"', '"*"', [("error", "trusts-everybody")],
            id="everybody is believed"),
        pytest.param(
            "gunicorn.conf.py", 'forwarded_allow_ips = "10.0.0.0/24"\n', "",
            [("warning", "proxy-untrusted")], id="the proxy is not"),
        pytest.param(
            "gunicorn.conf.py", '["0.0.0.0:8000", "[::]:8000"]', '"127.0.0.1:8000"',
            [("error", "address"), *STRANGERS], id="nobody listens on the network"),
        pytest.param(
            "gunicorn.conf.py", '["0.0.0.0:8000", "[::]:8000"]', '"0.0.0.0:9000"',
            [("warning", "address"), *STRANGERS], id="another port, which a container may map"),
        pytest.param(
            "nginx.conf", "    proxy_connect_timeout 1500ms;\n", "",
            [("warning", "connect-timeout")], id="a host that is off is waited for"),
        pytest.param("nginx.conf", TWO, ONE, [("warning", "single-server")], id="one has no other"),
        pytest.param(
            "nginx.conf", "proxy_read_timeout 2m;", "proxy_set_header X-Export 1;",
            [("error", "no-x-forwarded-for"), *[("warning", code) for code in (
                "keepalive-unused", "no-host", "no-x-forwarded-proto", "no-x-request-id",
                "no-x-request-start")]],
            id="a header that cuts off those of the server"),
        pytest.param(
            "nginx.conf", "proxy_read_timeout 2m;", "proxy_read_timeout 59s;",
            [("error", "deadline-order")], id="a location that waits less than the others"),
        pytest.param(
            "gunicorn.conf.py", "class Worker(GreenWorker)", "class Worker(GreenWorker.__mro__[1])",
            [("error", "worker-class")], id="a worker of somebody's own that is not green"),
    ],
)  # fmt: skip
def test_two_hosts_have_traps_of_their_own(
    file: str, old: str, new: str, found: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Over the network, with levels that inherit, and with other applications beside."""
    done = check_files(GOOD["two hosts"].changed(file, old, new), tmp_path, "--json")
    codes = [(level, code) for level, code, _ in told(done, tmp_path)]
    assert codes == found
    assert done.exit_code == (found[0][0] == "error")

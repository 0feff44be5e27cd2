"""greenline check-deploy reports a change of a good configuration by its line, and corrects it."""

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.deploy.checking import check_files, pasted, refused_by_nginx, reported
from tests.deploy.configurations import GOOD, Configuration
from tests.helpers.support import open_folder


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
    "nginx asks no other server": Break(
        "nginx.conf", "error timeout;", "off;", "not-retried", "proxy_next_upstream off"),
    "nor a second time": Break(
        "nginx.conf", "error timeout;", "error timeout; proxy_next_upstream_tries 1;",
        "not-retried", "proxy_next_upstream_tries"),
    "gunicorn closes each": Break(
        "gunicorn.conf.py", "\nkeepalive = 5", "\nkeepalive = 0", "keepalive-refused",
        "keepalive = 0"),
    "it is not set whether they are kept": Break(
        "nginx.conf", "        keepalive 64;\n", "", "keepalive-unset", "upstream app"),
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
    "an address that begins with the client's": Break(
        "nginx.conf", "X-Forwarded-For $remote_addr", "X-Forwarded-For $proxy_add_x_forwarded_for",
        "appended-for", "proxy_set_header X-Forwarded-For"),
    "an address that begins with it behind a balancer that lets X-Real-IP through": Break(
        "nginx.conf", "X-Forwarded-For $remote_addr",
        "X-Forwarded-For $proxy_add_x_forwarded_for; set_real_ip_from 10.0.0.0/8", "appended-for",
        "proxy_set_header X-Forwarded-For"),
    "an address that is not passed on": Break(
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
    "the default limit of nginx for bodies": Break(
        "nginx.conf", "        client_max_body_size 1m;\n", "", "body-limit", "proxy_pass http"),
    "a connect timeout of minutes": Break(
        "nginx.conf", "proxy_connect_timeout 2s", "proxy_connect_timeout 5m", "connect-timeout",
        "proxy_connect_timeout"),
    "a socket to which every user can connect": Break(
        "gunicorn.conf.py", "umask = 0o007\n", "", "open-socket", "bind ="),
    "a umask that lets other users connect": Break(
        "gunicorn.conf.py", "umask = 0o007", "umask = 0o070", "open-socket", "umask ="),
    "2 x CPUs + 1 workers": Break(
        "gunicorn.conf.py", "workers = 4", "workers = __import__('os').cpu_count() * 2 + 1",
        "worker-count", "workers ="),
    "workers that restart together": Break(
        "gunicorn.conf.py", "preload_app = False", "max_requests = 5000", "restart-jitter",
        "max_requests"),
    "a host of the client's making": Break(
        "nginx.conf", "proxy_set_header Host $host;", "proxy_set_header Host $http_host;",
        "client-host", "proxy_set_header Host $http_host"),
    "a scheme that is not passed on": Break(
        "nginx.conf", "            proxy_set_header X-Forwarded-Proto $scheme;\n", "",
        "no-x-forwarded-proto", "proxy_set_header"),
    "two logs without a common id": Break(
        "nginx.conf", "            proxy_set_header X-Request-Id $request_id;\n", "",
        "no-x-request-id", "proxy_set_header"),
    "a queue that is not measured": Break(
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

# The files do not have the value that corrects these.
DECISIONS = ["everybody may be a proxy"]


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
    assert reported(done, tmp_path) == [(level, one.code, place)]
    assert done.exit_code == (level == "error")


@pytest.mark.parametrize("name", [name for name in (*ERRORS, *WARNINGS) if name not in DECISIONS])
def test_the_corrected_lines_pass(name: str, tmp_path: Path) -> None:
    """Pasted into the files they leave no error and no warning, and nginx accepts them."""
    one = {**ERRORS, **WARNINGS}[name]
    corrected = pasted(GOOD["one host"].changed(one.file, one.old, one.new), tmp_path)
    assert reported(check_files(corrected, tmp_path, "--json"), tmp_path) == []
    assert refused_by_nginx(corrected, tmp_path) == ""


@pytest.mark.parametrize("name", DECISIONS)
def test_a_finding_without_a_correction_is_named(name: str, tmp_path: Path) -> None:
    """The files do not have the address of the proxy."""
    one = ERRORS[name]
    done = check_files(GOOD["one host"].changed(one.file, one.old, one.new), tmp_path)
    assert done.stdout.splitlines()[-1].endswith(f"see the fix: {one.code}")


@pytest.mark.parametrize(
    ("environ", "level", "code", "place"),
    [
        pytest.param(
            {"GREENLINE_PROXY_KEEPALIVE": "1"}, "error", "proxy-keepalive", "nginx.conf:11",
            id="a variable below the idle timeout of the proxy"),
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
            {"GREENLINE_MAX_BODY_BYTES": "524288"}, "warning", "body-limit", "nginx.conf:15",
            id="bodies that the service refuses"),
        pytest.param(
            {"GREENLINE_MAX_IN_PROGRESS": "2000"}, "warning", "limit-connections",
            "gunicorn.conf.py:4", id="a limit equal to worker_connections"),
        pytest.param(
            {"GREENLINE_MAX_IN_PROGRESS": "1500", "GREENLINE_MAX_WAITING": "500"}, "warning",
            "limit-connections", "gunicorn.conf.py:4", id="a limit and a queue that use them up"),
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
    broken = replace(good, environ={**good.environ, **environ})
    done = check_files(broken, tmp_path, "--json")
    assert reported(done, tmp_path) == [(level, code, place)]
    assert done.exit_code == (level == "error")
    if code != "statement-order":  # a correction would print the URL
        corrected = pasted(broken, tmp_path)
        assert reported(check_files(corrected, tmp_path, "--json"), tmp_path) == []


TWO = """    proxy_connect_timeout 1500ms;
    upstream app {
        least_conn;
        server 10.0.0.1:8000 max_fails=2 fail_timeout=5s;
"""
ONE = "    upstream app {\n"
# Where it is unknown which of nginx's servers is this gunicorn, all of them are looked at.
STRANGERS = [("warning", "keepalive-unset"), ("warning", "single-server")]


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
            [("error", "address"), *STRANGERS], id="no socket listens on the network"),
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
    broken = GOOD["two hosts"].changed(file, old, new)
    done = check_files(broken, tmp_path, "--json")
    codes = [(level, code) for level, code, _ in reported(done, tmp_path)]
    assert codes == found
    assert done.exit_code == (found[0][0] == "error")
    # The files do not have the address of a remote nginx, nor the port that a container publishes.
    if not {
        ("error", "trusts-everybody"),
        ("warning", "proxy-untrusted"),
        ("warning", "address"),
    } & {*codes}:
        corrected = pasted(broken, tmp_path)
        assert reported(check_files(corrected, tmp_path, "--json"), tmp_path) == []


# As in most examples: proxy_pass names the server, and few directives are set.
BARE = {
    "on one line": "events {} http {server { location / {proxy_pass http://127.0.0.1:8000/;}}}",
    "with a condition": """\
events {}
http {
    server {
        location / {
            limit_except GET POST {
                deny all;
            }
            if ($request_method = POST) {
                proxy_pass http://127.0.0.1:8000;
            }
            proxy_pass http://127.0.0.1:8000;
        }
    }
    server {
        location = /${host} {proxy_pass http://127.0.0.1:8000/x;} # a comment; with } in it
        location /ws/ {
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "close";
            proxy_read_timeout 5s;
            proxy_pass "http://127.0.0.1:8000";
        }
    }
}
""",
}


@pytest.mark.parametrize("name", BARE)
def test_every_problem_of_a_bare_configuration_is_corrected(name: str, tmp_path: Path) -> None:
    """No correction causes another finding."""
    gunicorn = "bind = '0.0.0.0:8000'\nforwarded_allow_ips = '*'\nmax_requests = 9\nworkers = 4\n"
    broken = Configuration(
        {"nginx.conf": BARE[name]}, gunicorn, {"GREENLINE_MAX_IN_PROGRESS": "9000"}
    )
    corrected = pasted(broken, tmp_path)
    assert reported(check_files(corrected, tmp_path, "--json"), tmp_path) == []
    assert refused_by_nginx(corrected, tmp_path) == ""


@pytest.mark.parametrize("file", ["proxy.conf", "conf.d/app.conf"])
def test_lines_of_included_files_are_corrected_there(file: str, tmp_path: Path) -> None:
    """The title of the corrected lines names the included file."""
    good = GOOD["in pieces"]
    broken = good.changed("proxy.conf", "Host $host", "Host $http_host")
    broken = broken.changed("conf.d/app.conf", "timeout 50s", "timeout 20s")
    corrected = pasted(broken, tmp_path)
    assert corrected.files[file] != broken.files[file]
    assert reported(check_files(corrected, tmp_path, "--json"), tmp_path) == []


def test_a_comment_in_a_corrected_block_stays(tmp_path: Path) -> None:
    """Only the corrected lines of the block change."""
    broken = GOOD["one host"].changed(
        "nginx.conf", "keepalive_timeout 4s;", "# for } all\n        keepalive_timeout 1m;"
    )
    text = pasted(broken, tmp_path).files["nginx.conf"]
    assert text == broken.files["nginx.conf"].replace(
        "keepalive_timeout 1m", "keepalive_timeout 4s"
    )


@pytest.mark.parametrize("is_read", [False, True], ids=["by gunicorn", "by gunicorn.conf.py"])
def test_the_number_of_workers_may_come_from_the_environment(is_read: bool, tmp_path: Path) -> None:
    """The finding names WEB_CONCURRENCY, and the correction sets it."""
    count = 2 * (os.cpu_count() or 1) + 1
    text = "workers = int(__import__('os').environ['WEB_CONCURRENCY'])\n" if is_read else ""
    good = GOOD["one host"].changed("gunicorn.conf.py", "workers = 4\n", text)
    broken = replace(good, environ={**good.environ, "WEB_CONCURRENCY": str(count)})
    done = check_files(broken, tmp_path, "--json")
    assert reported(done, tmp_path) == [("warning", "worker-count", "WEB_CONCURRENCY")]
    assert pasted(broken, tmp_path).environ["WEB_CONCURRENCY"] == str(os.cpu_count())


@pytest.mark.parametrize(
    ("base", "old", "new"),
    [
        pytest.param("one host", "preload_app = False",
                     "max_requests = 5000; max_requests_jitter = 500", id="a jitter"),
        pytest.param("one host", "workers = 4", "workers = 1; max_requests = 5000",
                     id="one worker that restarts"),
        pytest.param("one host", "workers = 4", "workers = __import__('os').cpu_count()",
                     id="a worker for each CPU"),
        pytest.param("in pieces", "keepalive = 5", "keepalive = 5; bind = '127.0.0.1:8000'",
                     id="the address that nginx uses"),
    ],
)  # fmt: skip
def test_settings_beside_a_trap_are_accepted(base: str, old: str, new: str, tmp_path: Path) -> None:
    """Each differs from a trap in one value."""
    done = check_files(GOOD[base].changed("gunicorn.conf.py", old, new), tmp_path, "--json")
    assert reported(done, tmp_path) == []


def test_a_limit_below_worker_connections_is_accepted(tmp_path: Path) -> None:
    """A connection is left for a health check."""
    good = GOOD["one host"]
    environ = {**good.environ, "GREENLINE_MAX_IN_PROGRESS": "1999"}
    assert reported(check_files(replace(good, environ=environ), tmp_path, "--json"), tmp_path) == []


@pytest.mark.parametrize(
    ("bind", "corrected"),
    [
        pytest.param("'0.0.0.0:8000'", '["127.0.0.1:8000", "localhost:8000"]', id="IPv4"),
        pytest.param("['[::]:8000', 'unix:/run/app.sock']",
                     '["127.0.0.1:8000", "localhost:8000", "unix:/run/app.sock"]', id="IPv6"),
    ],
)  # fmt: skip
def test_a_bind_to_all_addresses_is_reported(bind: str, corrected: str, tmp_path: Path) -> None:
    """If nginx is on the same machine; the correction keeps the addresses that nginx uses."""
    settings = f"keepalive = 5; umask = 0o007\nbind = {bind}"
    broken = GOOD["in pieces"].changed("gunicorn.conf.py", "keepalive = 5", settings)
    done = check_files(broken, tmp_path, "--json")
    assert reported(done, tmp_path) == [("warning", "bind-everywhere", "gunicorn.conf.py:2")]
    text = pasted(broken, tmp_path).files["gunicorn.conf.py"]
    assert text.splitlines()[-1] == f"bind = {corrected}"


@pytest.mark.parametrize(("mode", "codes"), [(0o750, []), (0o755, ["open-socket"])])
def test_the_folder_of_a_socket_may_keep_other_users_out(
    mode: int, codes: list[str], tmp_path: Path
) -> None:
    """umask 0 is accepted if other users cannot enter the folder."""
    with open_folder() as folder:
        folder.chmod(mode)
        path = f"unix:{folder}/http.sock"
        good = GOOD["one host"].changed("gunicorn.conf.py", "umask = 0o007\n", "")
        text = good.nginx["nginx.conf"].replace("unix:/run/app/http.sock", path)
        moved = good.changed("gunicorn.conf.py", "unix:/run/app/http.sock", path)
        done = check_files(replace(moved, nginx={"nginx.conf": text}), tmp_path, "--json")
    assert [code for _, code, _ in reported(done, tmp_path)] == codes

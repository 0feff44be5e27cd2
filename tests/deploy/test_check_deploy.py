"""greenline check-deploy reports each problem with its line, and nothing else."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from greenline.deploy.checks import CHECKS
from greenline.deploy.facts import reaches
from tests.deploy.checking import OURS, SERVICE, check, check_files, reported
from tests.deploy.configurations import GOOD, Configuration
from tests.helpers.support import CHECKOUT, run

PASSED = len(CHECKS)


@pytest.mark.parametrize("name", GOOD)
def test_what_is_in_order_is_left_alone(name: str, tmp_path: Path) -> None:
    """A false alarm would teach to overlook the others."""
    done = check_files(GOOD[name], tmp_path, "--json")
    assert (done.exit_code, reported(done, tmp_path)) == (0, []), done.output


@pytest.mark.parametrize(
    ("base", "file", "old", "new"),
    [
        pytest.param("one host", "gunicorn.conf.py", '"127.0.0.1"', '"*"',
                     id="whom a unix socket trusts anyway"),
        pytest.param("two hosts", "gunicorn.conf.py", '"0.0.0.0:8000", ', "",
                     id="all addresses, asked by one"),
        pytest.param("one host", "gunicorn.conf.py", "preload_app = False\n",
                     "raw_env = ['GREENLINE_PROXY_KEEPALIVE=4']\n",
                     id="the proxy's own idle time"),
        pytest.param("one host", "nginx.conf", "uwsgi_pass 127.0.0.1:3031",
                     "proxy_pass http://10.0.0.9:80", id="another application beside it"),
        pytest.param("one host", "nginx.conf", "upstream app", "upstream App",
                     id="a name in other letters"),
        pytest.param("one host", "nginx.conf", "http://app;", "http://app$request_uri;",
                     id="a variable behind the server's name"),
        pytest.param("in pieces", "proxy.conf", "X-Forwarded-Proto $scheme",
                     "X-Forwarded-Proto $http_x_forwarded_proto", id="what the balancer says"),
        pytest.param("one host", "nginx.conf", 'Connection ""', "Connection $connection_upgrade",
                     id="a variable that is not readable"),
    ],
)  # fmt: skip
def test_what_may_be_so_is_left_alone(
    base: str, file: str, old: str, new: str, tmp_path: Path
) -> None:
    """It looks like a trap, and is none here."""
    done = check_files(GOOD[base].changed(file, old, new), tmp_path, "--json")
    assert (done.exit_code, reported(done, tmp_path)) == (0, []), done.output


@pytest.mark.parametrize(
    ("environ", "codes"),
    [
        pytest.param({}, ["socket-activation"], id="systemd's socket"),
        pytest.param(
            {"GUNICORN_CMD_ARGS": "--bind unix:/run/greenline/http.sock --umask 7"},
            [],
            id="one of its own",
        ),
    ],
)
def test_ours_is_in_order(environ: dict[str, str], codes: list[str]) -> None:
    """With the environment's defaults; that systemd's socket is needed is a remark."""
    done = check(*OURS, "--json", **SERVICE, **environ)
    assert done.exit_code == 0, done.output
    assert [code for _, code, _ in reported(done, CHECKOUT)] == codes


def test_a_snippet_that_several_locations_include_is_reported_once(tmp_path: Path) -> None:
    """By the line of the snippet, which is what has to be changed."""
    broken = GOOD["in pieces"].changed("proxy.conf", "proxy_set_header Host $host;\n", "")
    done = check_files(broken, tmp_path, "--json")
    assert reported(done, tmp_path) == [("warning", "no-host", "proxy.conf:2")]


def test_a_condition_is_a_level_of_its_own(tmp_path: Path) -> None:
    """What proxies within an `if` inherits from its location."""
    broken = GOOD["in pieces"].changed("conf.d/app.conf", "timeout 50s", "timeout 20s")
    done = check_files(broken, tmp_path, "--json")
    assert reported(done, tmp_path) == [("error", "deadline-order", "conf.d/app.conf:17")]


def test_what_gunicorn_gives_to_its_workers_counts(tmp_path: Path) -> None:
    """As raw_env, which is over the environment."""
    setting = "timeout = 30\nraw_env = ['DRAIN_DELAY=3']\n"
    broken = GOOD["one host"].changed("gunicorn.conf.py", "\ntimeout = 30\n", f"\n{setting}")
    done = check_files(broken, tmp_path, "--json")
    assert reported(done, tmp_path) == [("error", "drain-order", "gunicorn.conf.py:6")]


def test_a_socket_of_systemd_s_tells_one_server_from_others(tmp_path: Path) -> None:
    """Other applications that nginx proxies to are not this gunicorn's business."""
    beside = GOOD["one host"].changed(
        "nginx.conf", "uwsgi_pass 127.0.0.1:3031", "proxy_pass http://127.0.0.1:3031"
    )
    tcp = beside.changed("gunicorn.conf.py", "unix:/run/app/http.sock", "127.0.0.1:8000")
    done = check_files(tcp, tmp_path, "--json")
    assert reported(done, tmp_path) == [("remark", "socket-activation", "nginx.conf:7")]
    assert done.exit_code == 0


def test_a_site_alone_can_be_checked(tmp_path: Path) -> None:
    """A file of conf.d is inside of http; how many connections there are is the main file's."""
    nginx, gunicorn = GOOD["in pieces"].write(tmp_path)
    site = nginx.parent / "conf.d" / "app.conf"
    (site.parent / "proxy.conf").write_text((nginx.parent / "proxy.conf").read_text())
    done = check("--nginx", site, "--gunicorn", gunicorn, "--json", REQUEST_TIMEOUT="20")
    assert reported(done, tmp_path) == []


def test_a_site_is_corrected_with_its_includes(tmp_path: Path) -> None:
    """Relative paths are those of nginx.conf; each file gets its own lines."""
    broken = GOOD["in pieces"].changed("proxy.conf", "Host $host", "Host $http_host")
    broken = broken.changed("conf.d/app.conf", "keepalive_timeout 4;", "keepalive_timeout 9;")
    nginx, gunicorn = broken.write(tmp_path)
    site = nginx.parent / "conf.d" / "app.conf"
    done = check("--nginx", site, "--gunicorn", gunicorn, REQUEST_TIMEOUT="20")
    assert (
        f"# {tmp_path}/proxy.conf, in place of line 3:\nproxy_set_header Host $host;" in done.stdout
    )
    assert f"# {site}, in place of lines 3-8:\nupstream app {{\n" in done.stdout
    assert done.exit_code == 1


def test_without_an_upstream_block_the_address_is_in_proxy_pass(tmp_path: Path) -> None:
    """As most examples have it: nginx does not keep connections, and asks one server once."""
    text = "http { server { location / { proxy_pass http://127.0.0.1:8000/; } } }"
    done = check_files(Configuration({"nginx.conf": text}, ""), tmp_path, "--json")
    codes = {code for _, code, _ in reported(done, tmp_path)}
    assert {"keepalive-unset", "single-server", "no-x-forwarded-for", "worker-class"} <= codes
    assert "address" not in codes


def test_a_server_that_a_variable_names_is_said_to_be_unread(tmp_path: Path) -> None:
    """Silence would be taken for order."""
    beside = GOOD["one host"].changed(
        "nginx.conf", "uwsgi_pass 127.0.0.1:3031", "proxy_pass http://$arg_host"
    )
    done = check_files(beside, tmp_path, "--json")
    assert reported(done, tmp_path) == [("remark", "unread-proxy-pass", "nginx.conf:20")]
    assert done.exit_code == 0


def test_a_map_for_websockets_may_close_all_other_connections(tmp_path: Path) -> None:
    """As nginx's own example has it; empty in the place of close keeps them."""
    mapped = GOOD["one host"].changed("nginx.conf", 'Connection ""', "Connection $upgrade")
    for value, found in (
        ("close", [("warning", "keepalive-unused", "nginx.conf:6")]),
        ("''", []),
    ):
        text = f"http {{ map $http_upgrade $upgrade {{ default upgrade; '' {value}; }}"
        done = check_files(mapped.changed("nginx.conf", "http {", text), tmp_path, "--json")
        assert reported(done, tmp_path) == found


@pytest.mark.parametrize(
    ("asked", "bound", "is_there"),
    [
        pytest.param("::1", "127.0.0.1", False, id="another family"),
        pytest.param("127.0.0.1", "::1", False, id="the other way round"),
        pytest.param("::1", "localhost", True, id="a name that may be either"),
        pytest.param("::1", "::1", True, id="the same"),
        pytest.param("127.0.0.1", "10.0.0.1", False, id="another network"),
    ],
)
def test_a_loopback_address_is_of_one_family(asked: str, bound: str, is_there: bool) -> None:
    """Who listens on 127.0.0.1 does not hear who asks [::1]."""
    assert reaches((asked, 8000), (bound, 8000)) == is_there


def test_servers_that_the_file_does_not_name_are_no_wrong_address(tmp_path: Path) -> None:
    """An upstream with a zone alone gets them while nginx runs."""
    good = GOOD["one host"]
    text = re.sub(r" +server unix:.*\n", "", good.nginx["nginx.conf"])
    text = text.replace("keepalive 64;", "keepalive 64; zone app 64k;")
    done = check_files(replace(good, nginx={"nginx.conf": text}), tmp_path, "--json")
    assert reported(done, tmp_path) == []


def test_each_finding_has_a_reason_and_a_fix(tmp_path: Path) -> None:
    """One block a finding, the worst first, and a count of all at the end."""
    good = GOOD["one host"]
    text = good.nginx["nginx.conf"].replace("timeout 4s", "timeout 1m")
    text = text.replace("proxy_buffering on", "proxy_buffering off")
    done = check_files(replace(good, nginx={"nginx.conf": text}), tmp_path)
    findings, summary, _ = done.stdout.partition(
        f"1 error, 1 warning, 1 remark, {PASSED - 2} checks"
    )
    blocks = findings.strip().split("\n\n")
    assert done.exit_code == 1
    first = blocks[0].replace(f"{tmp_path}/", "").splitlines()[0]
    assert first == (
        "error: nginx.conf:11: keepalive_timeout of the upstream (60 s) is not below "
        "gunicorn's keepalive (5 s) [keepalive-order]"
    )
    assert [block.partition(":")[0] for block in blocks] == ["error", "warning", "remark"]
    assert all("\n  why: " in block and "\n  fix: " in block for block in blocks)
    assert summary


def test_the_command_reads_the_working_directory() -> None:
    """As the README shows it, in the checkout, as a process of its own."""
    done = run(["python", "-m", "greenline", "check-deploy"], SERVICE)
    assert "deploy/nginx.conf:" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == f"nothing is out of order; 2 remarks, {PASSED} checks passed"

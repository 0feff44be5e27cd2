"""deploy/prometheus, read by Debian's promtool and run by Debian's Prometheus."""

import json
import math
import random
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedded import debian
from tests.e2e.hosting import hosting
from tests.helpers.load import Load
from tests.helpers.support import CHECKOUT, Databases, free_port, service, wait_until

FOLDER = CHECKOUT / "deploy/prometheus"
RULES = FOLDER / "rules.yml"
ONE = 'job="greenline",instance="a:9191"'
# By alert, series of promtool's tests in which it fires after half an hour.
FIRES: dict[str, dict[str, str]] = {
    "GreenlineIsAway": {'up{job="greenline",instance="a:9191"}': "0x40"},
    "GreenlineFails": {
        'greenline_requests_total{job="greenline",instance="a:9191",status="500"}': "0+6x40",
        'greenline_requests_total{job="greenline",instance="a:9191",status="200"}': "0+300x40",
    },
    "GreenlineRefuses": {
        'greenline_refused_requests_total{job="greenline",instance="a:9191"}': "0+60x40"
    },
    "GreenlineMissesDeadlines": {
        'greenline_deadlines_total{job="greenline",instance="a:9191"}': "0+1x40"
    },
    "GreenlineQueueGrows": {
        'greenline_requests_waiting{job="greenline",instance="a:9191"}': "50x40",
        'greenline_concurrency_limit{job="greenline",instance="a:9191"}': "20x40",
    },
    "GreenlineConnectionsRunOut": {
        'greenline_connections{job="greenline",instance="a:9191"}': "1900x40",
        'greenline_connections_max{job="greenline",instance="a:9191"}': "2000x40",
    },
    "GreenlinePoolIsEmpty": {
        'greenline_pool_waiting{job="greenline",instance="a:9191",pool="postgres"}': "3x40"
    },
    "GreenlinePoolFails": {
        f'greenline_pool_checkout_errors_total{{{ONE},pool="postgres"}}': "0+1x40"
    },
    "GreenlineHubIsBlocked": {
        'greenline_hub_blocks_total{job="greenline",instance="a:9191"}': "0+2x40"
    },
    "GreenlineWorkersAreMissing": {
        'greenline_workers{job="greenline",instance="a:9191"}': "4x5 3x35",
        'greenline_workers_configured{job="greenline",instance="a:9191"}': "4x40",
    },
}
# In which none does.
QUIET = {
    'up{job="greenline",instance="a:9191"}': "1x40",
    'greenline_requests_total{job="greenline",instance="a:9191",status="500"}': "0+1x40",
    'greenline_requests_total{job="greenline",instance="a:9191",status="200"}': "0+300x40",
    'greenline_refused_requests_total{job="greenline",instance="a:9191"}': "7x40",
    'greenline_deadlines_total{job="greenline",instance="a:9191"}': "3x40",
    'greenline_requests_waiting{job="greenline",instance="a:9191"}': "5x40",
    'greenline_concurrency_limit{job="greenline",instance="a:9191"}': "20x40",
    'greenline_connections{job="greenline",instance="a:9191"}': "500x40",
    'greenline_connections_max{job="greenline",instance="a:9191"}': "2000x40",
    'greenline_pool_waiting{job="greenline",instance="a:9191",pool="postgres"}': "0 2 0x38",
    f'greenline_pool_checkout_errors_total{{{ONE},pool="postgres"}}': "4x40",
    'greenline_hub_blocks_total{job="greenline",instance="a:9191"}': "0+0.1x40",
    # A reload: for a minute the old ones and the new ones run.
    'greenline_workers{job="greenline",instance="a:9191"}': "4x5 8 4x34",
    'greenline_workers_configured{job="greenline",instance="a:9191"}': "4x40",
}
# What Prometheus adds to the series of a pod.
POD = {"namespace": "default", "pod": "greenline-1"}
AUTOSCALER = CHECKOUT / "deploy/kubernetes/autoscaler.yaml"
DASHBOARD = CHECKOUT / "deploy/grafana/greenline.json"
# What the dashboard shows without a number here: no function blocks the hub, no connection is made
# after the first scrape, and the application has no cache.
NOT_HERE = re.compile("greenline_(hub_blocks_logged_|pool_connect_seconds_|cache_)")
SLEEPS_S = (0.02, 0.4)  # of most requests, and of three in a hundred


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of prometheus and promtool, which has a package of its own from Debian 13 on."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("prometheus", "promtool"):
        program = debian.unpacked("prometheus") / "usr/bin" / name
        if not program.exists():
            program = debian.unpacked(name) / "usr/bin" / name
        (folder / name).symlink_to(program)
    return folder


def promtool(programs: Path, *arguments: str, given: str = "") -> str:
    done = subprocess.run(
        [programs / "promtool", *arguments],
        input=given, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def ask(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_the_files_are_valid(programs: Path) -> None:
    """By promtool; each alert says why it is one, and what to do."""
    assert "SUCCESS" in promtool(programs, "check", "config", str(FOLDER / "prometheus.yml"))
    alerts = [rule for rule in rules() if "alert" in rule]
    assert {rule["alert"] for rule in alerts} == set(FIRES)
    assert all(rule["annotations"].keys() == {"summary", "reason", "action"} for rule in alerts)


def firing(programs: Path, folder: Path, series: dict[str, str], expected: list[str]) -> None:
    """
    Have promtool prove that these alerts fire after half an hour, and no others.

    Each has the job and the instance, by which the dashboard marks it.
    """
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'sum by (alertname, job, instance) (ALERTS{alertstate="firing"})',
                "eval_time": "35m",
                "exp_samples": [
                    {"labels": f'{{alertname="{name}",{ONE}}}', "value": 1} for name in expected
                ],
            }
        ],
    }
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    promtool(programs, "test", "rules", str(path))


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_fires(programs: Path, tmp_path: Path, alert: str) -> None:
    """For half an hour of what it is about; no other one does."""
    firing(programs, tmp_path, FIRES[alert], [alert])


def test_no_alert_fires_without_a_reason(programs: Path, tmp_path: Path) -> None:
    """A service that works, with a few failures behind it."""
    firing(programs, tmp_path, QUIET, [])


@contextmanager
def prometheus(programs: Path, folder: Path, target: str) -> Iterator[str]:
    """Run Prometheus with our configuration, but for the target, its labels and the interval."""
    text = (FOLDER / "prometheus.yml").read_text(encoding="utf-8")
    configuration = yaml.safe_load(text.replace("15s", "1s"))
    configuration["scrape_configs"][0]["static_configs"] = [{"targets": [target], "labels": POD}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    (folder / "rules.yml").write_bytes(RULES.read_bytes())
    port = free_port()
    command = [
        programs / "prometheus", f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def query(url: str, expression: str) -> list[tuple[dict[str, str], float]]:
    answer = json.loads(ask(f"{url}/api/v1/query?query={urllib.parse.quote(expression)}"))
    return [(each["metric"], float(each["value"][1])) for each in answer["data"]["result"]]


def is_up(url: str) -> bool:
    try:
        return [value for _, value in query(url, "up")] == [1.0]
    except OSError:
        return False


def test_prometheus_has_the_clients_p99(programs: Path, tmp_path: Path) -> None:
    """Within the bounds of a bucket; what we expose and what the rules ask for is known to it."""
    port = free_port()
    with (
        hosting("tests.e2e.watched:app", GREENLINE_OPS_BIND=f"127.0.0.1:{port}") as running,
        prometheus(programs, tmp_path, f"127.0.0.1:{port}") as url,
    ):
        wait_until(lambda: is_up(url), "the first scrape")
        promtool(programs, "check", "metrics", given=ask(f"http://127.0.0.1:{port}/metrics"))
        chances, took_s = random.Random(5), []
        for _ in range(200):
            sleep_s = SLEEPS_S[chances.random() < 0.03]
            begun_s = time.monotonic()
            assert running.get(f"/wait?{sleep_s}").status == 200
            took_s.append(time.monotonic() - begun_s)
        expression = (
            "histogram_quantile(0.99, sum by (le) (rate("
            'greenline_request_duration_seconds_bucket{route="/wait"}[1m])))'
        )
        count = 'greenline_request_duration_seconds_count{route="/wait"}'
        wait_until(lambda: [value for _, value in query(url, count)] == [200], "all requests")
        ((_, p99_s),) = query(url, expression)
        client_s = sorted(took_s)[round(0.99 * len(took_s)) - 1]
        # The service notes no less than the sleep, and no more than its client, whom a busy machine
        # may keep waiting before and after that; a bucket is as wide as its lower bound at most.
        assert SLEEPS_S[1] / 2 <= p99_s <= client_s * 2
        names = {each["__name__"] for each, _ in query(url, '{__name__=~"greenline_.+"}')}
        used = {
            name
            for rule in rules()
            for name in re.findall(r"(?<![:\w])greenline_\w+(?!\w*:)", rule["expr"])
        }
        # Without a pool its series are missing.
        assert {name for name in used - names if not name.startswith("greenline_pool_")} == set()


def test_the_dashboard_counts_missing_workers(programs: Path, tmp_path: Path) -> None:
    """One of a host that answers, and both of one that does not."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    (panel,) = (panel for panel in panels if panel["title"] == "Workers")
    running, missing = (target["expr"] for target in panel["targets"])
    series = {
        'greenline_workers{job="greenline",instance="a:9191"}': "4x5 3x35",
        'greenline_workers_configured{job="greenline",instance="a:9191"}': "4x40",
        'greenline_workers{job="greenline",instance="b:9191"}': "2x30 _x10",
        'greenline_workers_configured{job="greenline",instance="b:9191"}': "2x30 _x10",
        'up{job="greenline",instance="a:9191"}': "1x40",
        'up{job="greenline",instance="b:9191"}': "1x30 0x10",
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": re.sub(r"\$\w+", ".*", expression),
                "eval_time": "40m",
                "exp_samples": [{"labels": "{}", "value": 3}],
            }
            for expression in (running, missing)
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({"tests": [test]}))
    promtool(programs, "test", "rules", str(path))


def adapted(url: str) -> list[str]:
    """Return the pods for which prometheus-adapter finds what the autoscaler asks for."""
    (rule,) = yaml.safe_load((FOLDER / "adapter.yml").read_text(encoding="utf-8"))["rules"]
    assert rule.keys() == {"seriesQuery", "resources", "metricsQuery"}
    metrics = yaml.safe_load(AUTOSCALER.read_text(encoding="utf-8"))["spec"]["metrics"]
    (name,) = (one["pods"]["metric"]["name"] for one in metrics if one["type"] == "Pods")
    ((found, _),) = query(url, rule["seriesQuery"])
    assert found["__name__"] == name
    assert rule["resources"]["overrides"] == {label: {"resource": label} for label in POD}
    # As the adapter fills in its template.
    matchers = f'namespace="{POD["namespace"]}",pod=~"{POD["pod"]}|greenline-2"'
    parts = {".Series": name, ".LabelMatchers": matchers, ".GroupBy": "pod"}
    filled = re.sub(r"<<(.+?)>>", lambda part: parts[part[1]], rule["metricsQuery"])
    return [labels["pod"] for labels, _ in query(url, filled)]


def test_each_query_of_the_dashboard_has_a_number(
    programs: Path, tmp_path: Path, databases: Databases
) -> None:
    """Of the service under load, with both pools and failures."""
    port = free_port()
    settings = {
        "GREENLINE_OPS_BIND": f"127.0.0.1:{port}", "GREENLINE_DIAGNOSTICS": "1", "AUTH": "off",
        "REQUEST_TIMEOUT": "1",
    }  # fmt: skip
    chosen = {
        "$job": "greenline", "$instance": f"127.0.0.1:{port}|other", "$__rate_interval": "1m",
    }  # fmt: skip

    def numbers(expression: str) -> list[float]:
        for name, value in chosen.items():
            expression = expression.replace(name, value)
        return [value for _, value in query(url, expression) if not math.isnan(value)]

    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    with (
        service({**databases.environ, **settings}) as running,
        prometheus(programs, tmp_path, f"127.0.0.1:{port}") as url,
    ):
        wait_until(lambda: is_up(url), "the first scrape")
        paths = ("/books?limit=1", "/states?limit=1", "/diagnostics/sleep?seconds=9")
        loads = [Load(("127.0.0.1", running.port), clients=2, path=path) for path in paths]
        for grown in ('greenline_requests_total{status="504"}', "greenline_pool_checkouts_total"):
            wait_until(partial(numbers, f"min(rate({grown}[1m])) > 0"), grown)
        empty = [each["expr"] for each in targets if not numbers(each["expr"])]
        assert [each for each in empty if not NOT_HERE.search(each)] == []
        for each in dashboard["annotations"]["list"]:
            assert numbers(each["expr"]) == []
        for each in dashboard["templating"]["list"]:
            for series, label in re.findall(r"label_values\((.+),(\w+)\)", each["query"]):
                assert numbers(f"count by ({label}) ({series})") == [1]
        assert adapted(url) == [POD["pod"]]
        for load in loads:
            load.stop()
        assert {status for load in loads for status in load.statuses} == {200, 504}

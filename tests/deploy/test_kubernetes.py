"""deploy/kubernetes: what the API takes, what belongs together, and a pod's first start."""

import re
import runpy
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from greenline.budget.plan import Deployment, PostgresFacts, mongodb_plan, postgres_plan
from greenline.lifecycle import health
from greenline.worker import dry_run, preflight
from tests.deploy.kustomize import FOLDER, NotBuilt, build
from tests.helpers.support import (
    CHECKOUT,
    IS_LONG,
    Databases,
    Service,
    free_port,
    run,
    service,
    wait_until,
)

# The oldest API that has all of it, and the newest that is known here.
VERSIONS = ("1.30", kubernetes_validate.latest_version())
AT_REST_MOST = 100  # pymongo's own maxPoolSize
KEY = ("keys", "create", "--name", "first", "--scopes", "read,write,admin")

Object = dict[str, Any]


@pytest.fixture(scope="module")
def objects() -> dict[str, Object]:
    """The objects of the files, by kind."""
    resources = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(resources) == files
    loaded = [yaml.safe_load((FOLDER / name).read_text()) for name in resources]
    return {each["kind"]: each for each in loaded}


@pytest.fixture(scope="module")
def pod(objects: dict[str, Object]) -> Object:
    """What a pod of the service is made from."""
    spec: Object = objects["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def container(pod: Object) -> Object:
    """Its only container."""
    (one,) = pod["containers"]
    assert isinstance(one, dict)
    return one


@pytest.fixture(scope="module")
def autoscaler(objects: dict[str, Object]) -> Object:
    """What says how many pods there are."""
    spec: Object = objects["HorizontalPodAutoscaler"]["spec"]
    return spec


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    """The settings of all pods."""
    lines = (FOLDER / "settings.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture
def gunicorn(
    settings: dict[str, str], databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """gunicorn.conf.py, read as in a pod."""
    for name, value in {**databases.environ, **settings}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(CHECKOUT)
    return runpy.run_path("gunicorn.conf.py")


@pytest.fixture
def pod_of_nothing(
    settings: dict[str, str], empty_database: str, empty_mongo: str
) -> Iterator[Service]:
    """A service with a pod's settings, on databases where nothing is."""
    environ = {**settings, "DATABASE_URL": empty_database, "MONGODB_URI": empty_mongo}
    environ["GREENLINE_OPS_BIND"] = f"127.0.0.1:{free_port()}"
    with service(environ, wait=False) as running:
        yield running


@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_knows_every_field(objects: dict[str, Object], version: str) -> None:
    """One that is misspelled is not taken for one that is left out."""
    for each in objects.values():
        kubernetes_validate.validate(each, version, strict=True)


def built(folder: Path = FOLDER) -> dict[str, Object]:
    """Return what kustomize makes of the files, by kind."""
    try:
        made = build(folder, may_compile=IS_LONG)
    except NotBuilt as error:
        pytest.skip(str(error))
    return {each["kind"]: each for each in made}


@pytest.mark.timeout(900)
def test_kustomize_puts_it_together(objects: dict[str, Object], settings: dict[str, str]) -> None:
    """One image everywhere, a migration named after it, the settings under a name of their own."""
    made = built()
    for each in made.values():
        kubernetes_validate.validate(each, VERSIONS[0], strict=True)
    assert set(made) == {*objects, "ConfigMap"}  # and no Secret
    assert made["ConfigMap"]["data"] == settings
    pods = [made[kind]["spec"]["template"]["spec"] for kind in ("Deployment", "Job")]
    one, other = (spec["containers"][0] for spec in pods)
    assert one["image"] == other["image"]
    tag = one["image"].rpartition(":")[2]
    assert made["Job"]["metadata"]["name"] == f"greenline-migration-{tag}"
    name = made["ConfigMap"]["metadata"]["name"]
    secret = {"secretRef": {"name": "greenline"}}
    assert one["envFrom"] == [{"configMapRef": {"name": name}}, secret]
    assert other["envFrom"] == [secret]
    # Else each `kubectl apply` would undo what the autoscaler has done.
    assert "replicas" not in made["Deployment"]["spec"]


@pytest.mark.timeout(900)
def test_an_edited_setting_rolls_the_pods(tmp_path: Path) -> None:
    """The ConfigMap has another name, so the pods are others; a Job cannot change."""
    folder = tmp_path / "edited"
    shutil.copytree(FOLDER, folder)
    with (folder / "settings.env").open("a") as file:
        file.write("REQUEST_TIMEOUT=20\n")
    before, after = built(), built(folder)
    assert before["Deployment"]["spec"]["template"] != after["Deployment"]["spec"]["template"]
    assert before["Job"] == after["Job"]


def test_a_pod_has_time_to_stop(
    pod: Object, container: Object, settings: dict[str, str], gunicorn: dict[str, Any]
) -> None:
    """preStop and graceful_timeout come to less than terminationGracePeriodSeconds."""
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "sleep"
    stop_s, grace_s = int(command[1]), pod["terminationGracePeriodSeconds"]
    assert stop_s + gunicorn["graceful_timeout"] < grace_s
    drain_s = float(settings["DRAIN_DELAY"])
    assert drain_s + gunicorn["settings"].request_timeout_s < gunicorn["graceful_timeout"]


def test_each_probe_asks_something_else(container: Object, api: Service) -> None:
    """Startup waits for the slowest start, readiness for both databases, liveness for nothing."""
    startup, ready, alive = (
        container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")
    )
    paths = [probe["httpGet"]["path"] for probe in (startup, ready, alive)]
    assert paths == ["/healthz", "/readyz", "/healthz"]
    assert [api.get(path).status for path in paths] == [200, 200, 200]
    slowest_s = dry_run.LOAD_TIMEOUT_S + preflight.BUDGET_TIMEOUT_S
    assert startup["periodSeconds"] * startup["failureThreshold"] > slowest_s
    assert ready["timeoutSeconds"] > health.TOTAL_TIMEOUT_S


def test_a_worker_that_hangs_is_gunicorns_affair(
    container: Object, gunicorn: dict[str, Any]
) -> None:
    """Its heartbeat ends one worker; the probe, which ends them all, comes later."""
    alive = container["livenessProbe"]
    patience_s = alive["periodSeconds"] * (alive["failureThreshold"] - 1)
    assert patience_s > gunicorn["timeout"]


def test_a_rollout_keeps_within_the_connections(
    objects: dict[str, Object], container: Object, settings: dict[str, str]
) -> None:
    """Postgres counts the pods; MongoDB's share is what the workers of one pod can use."""
    rolling = objects["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert (rolling["maxSurge"], rolling["maxUnavailable"]) == (1, 0)
    assert settings["GREENLINE_HOSTS"] == "auto"
    workers = int(container["resources"]["limits"]["cpu"])
    surge = int(settings["GREENLINE_SURGE_HOSTS"])
    plan = mongodb_plan(
        None,
        Deployment(workers, surge_hosts=surge),
        max_connections=int(settings["MONGODB_MAX_CONNECTIONS"]),
    )
    assert plan.host == int(settings["MONGODB_MAX_CONNECTIONS"]) - 3
    assert plan.worker == AT_REST_MOST


def test_the_autoscaler_keeps_within_the_connections(autoscaler: Object, container: Object) -> None:
    """Of a Postgres as it comes, also while as many pods that were replaced drain."""
    workers = int(container["resources"]["limits"]["cpu"])
    pods = autoscaler["maxReplicas"]

    def connections(hosts: int) -> int:
        facts = PostgresFacts(max_connections=100)
        return postgres_plan(facts, Deployment(workers, hosts=hosts), is_counted=True).host

    text = (FOLDER / "autoscaler.yaml").read_text()
    (shown,) = re.findall(r"pods have (\d+)\s+#\s+each, and (\d+) .*? needs (\d+),", text, re.S)
    assert [int(number) for number in shown] == [
        connections(pods),
        connections(2 * pods),
        2 * workers,
    ]
    assert connections(2 * pods) >= 2 * workers


def test_the_autoscaler_knows_the_pods(
    autoscaler: Object, objects: dict[str, Object], container: Object
) -> None:
    """Which ones, what they may use, and how long one of them takes to come and to go."""
    deployment = objects["Deployment"]
    target = {"apiVersion": deployment["apiVersion"], "kind": "Deployment"}
    assert autoscaler["scaleTargetRef"] == {**target, "name": deployment["metadata"]["name"]}
    assert 2 <= autoscaler["minReplicas"] < autoscaler["maxReplicas"]
    cpu = autoscaler["metrics"][0]["resource"]["target"]["averageUtilization"] / 100
    used = cpu * float(container["resources"]["requests"]["cpu"])
    assert used / float(container["resources"]["limits"]["cpu"]) == pytest.approx(0.7)
    up, down = (autoscaler["behavior"][name] for name in ("scaleUp", "scaleDown"))
    assert up["policies"][0]["periodSeconds"] > deployment["spec"]["minReadySeconds"]
    grace_s = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 2 * grace_s}]


def test_prometheus_finds_the_metrics(
    objects: dict[str, Object], container: Object, settings: dict[str, str]
) -> None:
    """On the port that the pod has, its annotation names and the network lets through."""
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    host, _, port = settings["GREENLINE_OPS_BIND"].rpartition(":")
    assert (host, int(port)) == ("0.0.0.0", ports["metrics"])
    annotations = objects["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"prometheus.io/scrape": "true", "prometheus.io/port": port}
    rules = objects["NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for rule in rules for port in rule["ports"]] == list(ports)
    assert ["from" in rule for rule in rules] == [False, True]
    assert "\nprometheus-client==" in (CHECKOUT / "requirements-image.txt").read_text()


def test_every_setting_is_one_that_the_readme_knows(settings: dict[str, str]) -> None:
    """A misspelled one would change nothing, without an error."""
    known = set(
        re.findall(r"^\| `(\w+)` \|", (CHECKOUT / "docs/settings.md").read_text(), re.MULTILINE)
    )
    assert set(settings) <= known


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_a_container_may_do_no_more_than_it_has_to(objects: dict[str, Object], kind: str) -> None:
    """No root, no capability, no system calls of an administrator, nothing to write to."""
    spec = objects[kind]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    whole = spec["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert whole["runAsUser"] > 0
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert container["resources"]["limits"]["memory"]
    places = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
    assert places == (["/dev/shm"] if kind == "Deployment" else [])


def test_no_request_is_sent_to_the_migration(objects: dict[str, Object]) -> None:
    """What the Service and the disruption budget select are the pods of the service alone."""
    web, migration = (
        objects[kind]["spec"]["template"]["metadata"]["labels"].items()
        for kind in ("Deployment", "Job")
    )
    selectors = [objects["Service"]["spec"]["selector"]]
    for kind in ("Deployment", "PodDisruptionBudget"):
        selectors.append(objects[kind]["spec"]["selector"]["matchLabels"])
    selectors.append(objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"])
    for selector in selectors:
        assert selector.items() <= web
        assert not selector.items() <= migration


def test_the_first_time_goes_as_the_kustomization_says(
    pod_of_nothing: Service, objects: dict[str, Object], container: Object, pod: Object
) -> None:
    """Alive without a schema; the commands make it ready, which it says at once when it stops."""
    running = pod_of_nothing
    wait_until(running.is_alive, "the service to be alive")
    assert running.get("/readyz").status == 503
    environ = {"DATABASE_URL": "", "MONGODB_URI": ""}
    inherited = Path(f"/proc/{running.process.pid}/environ").read_text().split("\0")
    environ |= dict(line.split("=", 1) for line in inherited if line.startswith(tuple(environ)))
    migration = objects["Job"]["spec"]["template"]["spec"]["containers"][0]["command"]
    run(migration, environ)
    key = run(["flask", *KEY], environ).stdout.strip()
    wait_until(running.is_ready, "the service to be ready")
    headers = {"Authorization": f"Bearer {key}"}
    assert running.get("/books", headers=headers).status == 200
    started = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not running.is_ready(), "it to say that it stops")
    assert running.get("/books", headers=headers).status == 200
    assert running.process.wait(timeout=60) == 0
    took_s = time.monotonic() - started
    stop_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert stop_s + took_s < pod["terminationGracePeriodSeconds"]

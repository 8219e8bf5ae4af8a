"""`deploy/kubernetes` satisfies the schemas of Kubernetes' API, and agrees with the settings, the server and itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes_validate import SchemaNotFoundError, ValidationError
from typer.testing import CliRunner

from app.cli import main as cli
from app.runtime.serve import GRACE_SECONDS, KEEP_ALIVE_SECONDS, PATIENCE_SECONDS
from app.runtime.settings import Settings, secret_settings, variable
from app.worker import GRACE_SECONDS as WORKER_GRACE_SECONDS
from tests.support import manifests

ROOT = Path(__file__).parents[3]
ROLES = {"migrate", "api", "worker"}
SECRETS = "palimpsest-secrets"
SETTINGS = "palimpsest-settings"
MOUNT = "/run/secrets/palimpsest"


def component(manifest: dict[str, Any]) -> str:
    found: str = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
    return found


@pytest.fixture
def all_of_them() -> list[dict[str, Any]]:
    return manifests.included()


@pytest.fixture
def pods(all_of_them: list[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    return {name: (pod, container) for name, pod, container in manifests.pods(all_of_them)}


def one(given: list[dict[str, Any]], kind: str, name: str = "api") -> dict[str, Any]:
    [found] = [each for each in given if each["kind"] == kind and each["metadata"]["name"] == f"palimpsest-{name}"]
    return found


def test_every_file_is_included_or_optional() -> None:
    there = {path.name for path in manifests.FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert there == set(manifests.kustomization()["resources"])


def test_each_satisfies_the_schema_of_its_kind(all_of_them: list[dict[str, Any]]) -> None:
    for manifest in (*all_of_them, *manifests.optional().values()):
        if manifest["kind"] not in manifests.OTHERS_KINDS:
            manifests.check(manifest)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", "spec.template.spec.terminationGracePeriodSecond", 60),
        ("Deployment", "spec.template.spec.containers.0.readinesProbe", {}),
        ("Deployment", "spec.template.spec.containers.0.lifecycle.preStop.sleep.second", 10),
        ("Deployment", "spec.replicas", "two"),
        ("NetworkPolicy", "spec.ingres", []),
        ("PodDisruptionBudget", "spec.maxUnavailables", 1),
        ("Ingress", "spec.rules.0.http.paths.0.backend.serviceName", "palimpsest-api"),
        ("HorizontalPodAutoscaler", "spec.maxReplica", 6),
    ],
)
def test_a_misspelt_field_is_refused(all_of_them: list[dict[str, Any]], kind: str, path: str, value: object) -> None:
    given = {**{each["kind"]: each for each in all_of_them}, **manifests.optional()}
    broken: Any = given[kind] if kind != "Deployment" else one(all_of_them, kind)
    manifests.check(broken)
    *parents, field = path.split(".")
    inner = broken
    for part in parents:
        inner = inner[int(part)] if part.isdigit() else inner[part]
    inner[field] = value
    with pytest.raises(ValidationError):
        manifests.check(broken)


def test_a_kind_that_there_is_not_is_refused(all_of_them: list[dict[str, Any]]) -> None:
    with pytest.raises(SchemaNotFoundError):
        manifests.check({**one(all_of_them, "Deployment"), "apiVersion": "apps/v1beta1"})


def test_each_role_runs_the_one_image_by_a_command_that_there_is(pods: dict[str, Any]) -> None:
    [image] = manifests.kustomization()["images"]
    assert set(pods) == ROLES
    for role, (_, container) in pods.items():
        assert (container["image"], container["args"], "command" in container) == (image["name"], [role], False)
        assert CliRunner().invoke(cli.app, [role, "--help"]).exit_code == 0
    assert image["newTag"] != "latest"


def test_every_setting_exists_and_none_is_a_secret(pods: dict[str, Any]) -> None:
    [settings] = manifests.kustomization()["configMapGenerator"]
    known = {variable(name) for name in Settings.model_fields}
    files = {f"{variable(name)}_FILE" for name in secret_settings()}
    given = dict(line.split("=", 1) for line in settings["literals"])
    assert settings["name"] == SETTINGS
    assert set(given) <= known
    assert "@" in given["PALIMPSEST_DATABASE_URL"]
    assert ":" not in given["PALIMPSEST_DATABASE_URL"].split("@")[0].removeprefix("postgresql://")
    for role, (_, container) in pods.items():
        assert container["envFrom"] == [{"configMapRef": {"name": SETTINGS}}], role
        assert {each["name"] for each in container["env"]} <= files, role
    assert "PALIMPSEST_API_KEY_FILE" in {each["name"] for each in pods["api"][1]["env"]}


def test_every_secret_that_is_read_is_made_and_mounted(pods: dict[str, Any]) -> None:
    [secrets] = manifests.kustomization()["secretGenerator"]
    made = {Path(name).name for name in secrets["files"]}
    assert secrets["name"] == SECRETS
    assert made == set((ROOT / "deploy/secrets.sh").read_text().split("for name in ")[1].split(";")[0].split())
    for role, (pod, container) in pods.items():
        for each in container["env"]:
            assert each["value"] in {f"{MOUNT}/{name}" for name in made}, role
        mounts = {each["name"]: each for each in container["volumeMounts"]}
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert set(mounts) == set(volumes) == {"secrets", "tmp"}, role
        assert mounts["secrets"] == {"name": "secrets", "mountPath": MOUNT, "readOnly": True}, role
        assert volumes["secrets"]["secret"] == {"secretName": SECRETS, "defaultMode": 0o440}, role
        assert mounts["tmp"]["mountPath"] == "/tmp", role


def test_no_container_is_root_or_writes_or_holds_a_capability(pods: dict[str, Any]) -> None:
    user = next(line for line in (ROOT / "Dockerfile").read_text().splitlines() if "--uid " in line)
    uid = int(user.split("--uid ")[1].split()[0])
    for role, (pod, container) in pods.items():
        assert pod["securityContext"] == {
            **{"runAsNonRoot": True, "runAsUser": uid, "runAsGroup": uid, "fsGroup": uid},
            "seccompProfile": {"type": "RuntimeDefault"},
        }, role
        assert container["securityContext"] == {
            **{"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
            "capabilities": {"drop": ["ALL"]},
        }, role
        assert pod["automountServiceAccountToken"] is False, role
        assert pod["serviceAccountName"] == "palimpsest", role


def test_no_service_sets_a_variable_of_ours(pods: dict[str, Any]) -> None:
    for role, (pod, _) in pods.items():
        assert pod["enableServiceLinks"] is False, role


def test_every_container_is_bounded(pods: dict[str, Any]) -> None:
    for role, (_, container) in pods.items():
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}, role
        assert set(container["resources"]["limits"]) == {"memory"}, role


def test_the_probes_request_existing_routes(pods: dict[str, Any]) -> None:
    paths = json.loads((ROOT / "openapi/palimpsest.json").read_text(encoding="utf-8"))["paths"]
    _, api = pods["api"]
    asked = {name: api[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in asked.items()} == {
        **{"startup": "/healthz", "liveness": "/healthz"},
        "readiness": "/readyz",
    }
    assert {probe["path"] for probe in asked.values()} <= set(paths)
    assert {probe["port"] for probe in asked.values()} == {port["name"] for port in api["ports"]}
    [port] = api["ports"]
    assert port["containerPort"] == Settings.model_fields["port"].default


def test_a_worker_is_ready_by_the_command_that_compose_asks_too(pods: dict[str, Any]) -> None:
    _, worker = pods["worker"]
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert json.dumps(["CMD", *worker["readinessProbe"]["exec"]["command"]]) in compose
    assert "livenessProbe" not in worker  # restarting the worker does not bring back the database


def test_running_requests_end_within_the_grace_period(pods: dict[str, Any]) -> None:
    api, container = pods["api"]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause > 0
    assert api["terminationGracePeriodSeconds"] >= pause + PATIENCE_SECONDS > pause + GRACE_SECONDS
    assert pods["worker"][0]["terminationGracePeriodSeconds"] > WORKER_GRACE_SECONDS


def test_two_of_the_api_are_always_there_and_apart(all_of_them: list[dict[str, Any]], pods: dict[str, Any]) -> None:
    api = one(all_of_them, "Deployment")["spec"]
    assert api["replicas"] == 2
    assert api["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert one(all_of_them, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    keys = {each["topologyKey"] for each in pods["api"][0]["topologySpreadConstraints"]}
    assert keys == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


def test_selectors_match_their_own_pods(all_of_them: list[dict[str, Any]]) -> None:
    optional = manifests.optional()
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in all_of_them
        if each["kind"] in ("Deployment", "Job")
    }
    for name in ("api", "worker"):
        deployment = one(all_of_them, "Deployment", name)
        mine = labels[f"palimpsest-{name}"]
        assert deployment["spec"]["selector"]["matchLabels"] == mine == deployment["metadata"]["labels"]
        for constraint in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]:
            assert constraint["labelSelector"]["matchLabels"] == mine
    mine = labels["palimpsest-api"]
    service = one(all_of_them, "Service")["spec"]
    assert service["selector"] == mine
    assert one(all_of_them, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == mine
    assert one(all_of_them, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == mine
    assert optional["PodMonitor"]["spec"]["selector"]["matchLabels"] == mine
    [endpoint] = optional["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")
    target = optional["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "palimpsest-api")


@pytest.mark.wing("gateway")
def test_an_ingress_does_not_buffer_or_cut_off_responses(all_of_them: list[dict[str, Any]]) -> None:
    ingress = manifests.optional()["Ingress"]
    told = {key.split("/")[1]: value for key, value in ingress["metadata"]["annotations"].items()}
    fields = Settings.model_fields
    assert told["proxy-buffering"] == "off"
    for name in ("proxy-read-timeout", "proxy-send-timeout"):
        assert int(told[name]) > fields["gateway_silence_seconds"].default > KEEP_ALIVE_SECONDS
    assert int(told["proxy-body-size"].removesuffix("m")) * 1024 * 1024 > fields["body_bytes_max"].default
    service = one(all_of_them, "Service")
    [rule] = ingress["spec"]["rules"]
    assert rule["host"] in ingress["spec"]["tls"][0]["hosts"]
    paths = {path["path"]: path["backend"]["service"] for path in rule["http"]["paths"]}
    assert set(paths) == {"/v1", "/gateway", "/mcp", "/healthz"}  # `/metrics` is not exposed
    for backend in paths.values():
        assert backend == {"name": service["metadata"]["name"], "port": {"name": service["spec"]["ports"][0]["name"]}}


def test_objects_before_the_migration_have_its_label(all_of_them: list[dict[str, Any]]) -> None:
    """An upgrade applies the settings and the migration first, by their labels (docs/operations/kubernetes.md)."""
    labels = manifests.kustomization()["generatorOptions"]["labels"]
    assert labels == {"app.kubernetes.io/name": "palimpsest", "app.kubernetes.io/component": "settings"}
    first = {each["kind"] for each in all_of_them if component(each) in ("settings", "migrate")}
    assert first == {"Namespace", "ServiceAccount", "Job", "NetworkPolicy"}
    assert {component(each) for each in all_of_them if each["kind"] == "Deployment"} == {"api", "worker"}

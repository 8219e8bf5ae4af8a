"""The Compose files are valid, and keep the promises of `docs/deploy.md` and `docs/scaling.md`."""

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError
from typer.main import get_command

from app.cli import main as cli
from app.runtime.serve import KEEP_ALIVE_SECONDS
from app.runtime.settings import Settings, secret_settings, variable

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "tests/support/compose_spec/schema.json").read_text(encoding="utf-8"))
OURS = ("migrate", "api", "worker")


def check(compose: dict[str, Any]) -> None:
    Draft202012Validator(SCHEMA).validate(compose)


@pytest.fixture
def compose() -> dict[str, Any]:
    return read("docker-compose.yml")


def test_no_secret_is_made_without_openssl(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mkdir", "chmod"):
        (programs / name).symlink_to(str(shutil.which(name)))
    script = [str(shutil.which("sh")), str(ROOT / "deploy/secrets.sh"), str(tmp_path / "secrets")]
    assert subprocess.run(script, env={"PATH": str(programs)}, capture_output=True).returncode != 0
    assert list((tmp_path / "secrets").iterdir()) == []
    subprocess.run(script, check=True)
    made = {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}
    assert set(made) == {"api_key", "postgres_password"}
    assert all(re.fullmatch(r"pal_[0-9a-f]{64}\n", secret) for secret in made.values())


class Loader(yaml.SafeLoader):
    """A YAML loader that knows the tag by which a Compose file replaces a value instead of extending it."""


Loader.add_constructor("!override", lambda loader, node: loader.construct_sequence(node))


def read(path: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.load((ROOT / path).read_text(encoding="utf-8"), Loader)
    return parsed


@pytest.mark.parametrize("path", ["docker-compose.yml", "docker-compose.citus.yml", "deploy/proxy/compose.tls.yml"])
def test_each_file_satisfies_the_compose_schema(path: str) -> None:
    check(read(path))


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [
        ("api", "healthchek", {"test": ["CMD", "true"]}),
        ("api", "depends_on", {"migrate": {"condition": "service_finished"}}),
        ("postgres", "healthcheck", {"test": ["CMD", "true"], "retries": [5]}),
        ("worker", "ports", "127.0.0.1:8700"),
        ("api", "env_file", [{"path": "palimpsest.env", "needed": False}]),
    ],
)
def test_the_schema_refuses_a_broken_file(compose: dict[str, Any], service: str, key: str, value: object) -> None:
    broken = copy.deepcopy(compose)
    broken["services"][service][key] = value
    with pytest.raises(ValidationError):
        check(broken)


@pytest.fixture
def citus() -> dict[str, Any]:
    return read("docker-compose.citus.yml")


def test_the_shared_parts_of_the_files_are_equal(compose: dict[str, Any], citus: dict[str, Any]) -> None:
    ours, theirs = compose["services"], citus["services"]
    for name in OURS:
        for key in ours[name].keys() - {"depends_on", "environment", "deploy"}:
            assert theirs[name].get(key) == ours[name][key], (name, key)
        assert theirs[name]["deploy"] == ours[name]["deploy"], name
    assert citus["secrets"] == compose["secrets"]
    tls = {"PALIMPSEST_SITE_TLS", "PALIMPSEST_PROXY_OPTIONS"}
    plain = {key: value for key, value in ours["proxy"]["environment"].items() if key not in tls}
    assert theirs["proxy"] == {**ours["proxy"], "environment": plain}


@pytest.mark.wing("shards")
def test_a_database_is_distributed_before_it_is_served(citus: dict[str, Any]) -> None:
    services = citus["services"]
    once = {"condition": "service_completed_successfully"}
    assert services["migrate"]["depends_on"] == {"join": once}
    assert services["distribute"]["depends_on"] == {"migrate": once}
    for name in ("join", "migrate", "distribute"):
        assert services[name]["restart"] == "no"
    for name in ("api", "worker"):
        assert services[name]["depends_on"]["distribute"] == once
        assert services[name]["command"] == [name]
    environments = [services[name]["environment"] for name in ("migrate", "distribute", "worker")]
    own = {
        "PALIMPSEST_DATABASE_URL": "postgresql://palimpsest@coordinator:5432/palimpsest",
        "PALIMPSEST_DATABASE_PASSWORD_FILE": "/run/secrets/postgres_password",
    }
    assert environments == [own] * 3
    assert services["api"]["environment"] == {**own, "PALIMPSEST_API_KEY_FILE": "/run/secrets/api_key"}
    assert cli_commands() >= {services[name]["command"][0] for name in ("migrate", "distribute", "api", "worker")}


def cli_commands() -> set[str]:
    group: Any = get_command(cli.app)
    return set(group.commands)


def test_only_nodes_connect_to_each_other_without_a_password(citus: dict[str, Any]) -> None:
    services = citus["services"]
    nodes = {name for name, service in services.items() if "nodes" in service.get("networks", ())}
    assert nodes == {"coordinator", "node-1", "node-2", "join"}
    for name in nodes - {"coordinator"}:
        assert services[name]["networks"] == ["nodes"], name
    assert citus["networks"]["nodes"]["internal"] is True
    [subnet] = [each["subnet"] for each in citus["networks"]["nodes"]["ipam"]["config"]]
    assert {services[name]["environment"]["NODES_SUBNET"] for name in nodes - {"join"}} == {subnet}
    coordinator, *workers = services["join"]["command"]
    assert services["coordinator"]["networks"]["nodes"]["aliases"] == [coordinator]
    assert set(workers) == nodes - {"coordinator", "join"} == services["join"]["depends_on"].keys() - {"coordinator"}
    for name in nodes:
        for mount in services[name]["volumes"]:
            source = mount.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith("./") else source in citus["volumes"], mount


def test_the_server_starts_only_on_a_migrated_database(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["migrate"]["restart"] == "no"
    for name in ("api", "worker"):
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


def test_a_worker_is_known_by_its_connection_as_it_has_no_port(compose: dict[str, Any]) -> None:
    assert compose["services"]["worker"]["healthcheck"]["test"] == ["CMD", "palimpsest", "worker", "--healthy"]


@pytest.mark.parametrize("path", ["docker-compose.yml", "docker-compose.citus.yml"])
def test_every_port_is_published_on_loopback_only(path: str) -> None:
    published = [port for service in read(path)["services"].values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_api_does_not_start_without_a_key(compose: dict[str, Any]) -> None:
    api = compose["services"]["api"]
    assert api["environment"]["PALIMPSEST_API_KEY_FILE"] == "/run/secrets/api_key"
    assert "api_key" in api["secrets"]


def test_every_setting_can_be_given(compose: dict[str, Any]) -> None:
    """Every setting can be set in the settings file; the Compose file itself sets only the database and its secrets."""
    own = {"PALIMPSEST_DATABASE_URL", "PALIMPSEST_DATABASE_PASSWORD_FILE"}
    pooled = own | {"PALIMPSEST_DATABASE_POOLER_URL"}
    given = {"migrate": own, "worker": pooled, "api": pooled | {"PALIMPSEST_API_KEY_FILE"}}
    known = {variable(name) for name in Settings.model_fields} | {
        f"{variable(name)}_FILE" for name in secret_settings()
    }
    for name in OURS:
        service = compose["services"][name]
        assert service["env_file"] == [{"path": "palimpsest.env", "required": False}], name
        assert set(service["environment"]) == given[name] <= known, name


@pytest.mark.parametrize("path", ["docker-compose.yml", "docker-compose.citus.yml"])
def test_no_secret_is_in_an_environment(path: str) -> None:
    compose = read(path)
    assert all(set(one) == {"file"} for one in compose["secrets"].values())
    for name, service in compose["services"].items():
        for key, value in service.get("environment", {}).items():
            if any(word in key for word in ("PASSWORD", "KEY")):
                assert key.endswith("_FILE") and Path(value).name in service["secrets"], (name, key)


def test_all_services_behind_the_proxy_can_be_scaled(compose: dict[str, Any]) -> None:
    for name in ("api", "worker"):
        assert not {"ports", "container_name"} & set(compose["services"][name]), name
    assert [name for name, service in compose["services"].items() if "ports" in service] == ["proxy"]


@pytest.mark.parametrize("path", ["docker-compose.yml", "docker-compose.citus.yml"])
def test_every_container_is_bounded(path: str) -> None:
    for name, service in read(path)["services"].items():
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name


def test_the_proxy_closes_idle_connections_before_the_server() -> None:
    [seconds] = re.findall(r"^\s+keepalive (\d+)s$", (ROOT / "deploy/proxy/Caddyfile").read_text(), re.MULTILINE)
    assert int(seconds) < KEEP_ALIVE_SECONDS


def test_the_data_outlives_the_containers(compose: dict[str, Any]) -> None:
    assert compose["services"]["postgres"]["volumes"] == ["postgres:/var/lib/postgresql"]
    assert "postgres" in compose["volumes"]


def test_our_containers_write_nothing_and_hold_no_capability(compose: dict[str, Any]) -> None:
    for name in OURS:
        service = compose["services"][name]
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name

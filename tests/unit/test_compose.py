"""`docker-compose.yml` is a valid Compose file, and says what `docs/deploy.md` promises."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from app.settings import Settings
from app.worker.run import APPLICATION_NAME

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "tests/support/compose_spec/schema.json").read_text(encoding="utf-8"))
OURS = ("migrate", "api", "worker")


def check(compose: dict[str, Any]) -> None:
    Draft202012Validator(SCHEMA).validate(compose)


@pytest.fixture
def compose() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return parsed


def test_the_file_satisfies_the_compose_schema(compose: dict[str, Any]) -> None:
    check(compose)


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [
        ("api", "healthchek", {"test": ["CMD", "true"]}),
        ("api", "depends_on", {"migrate": {"condition": "service_finished"}}),
        ("postgres", "healthcheck", {"test": ["CMD", "true"], "retries": [5]}),
        ("worker", "ports", "127.0.0.1:8700"),
    ],
)
def test_the_schema_refuses_a_broken_file(compose: dict[str, Any], service: str, key: str, value: object) -> None:
    broken = copy.deepcopy(compose)
    broken["services"][service][key] = value
    with pytest.raises(ValidationError):
        check(broken)


def test_the_server_starts_only_on_a_migrated_database(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["migrate"]["restart"] == "no"
    for name in ("api", "worker"):
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


def test_a_worker_is_known_by_its_connection_as_it_has_no_port(compose: dict[str, Any]) -> None:
    assert f"application_name = '{APPLICATION_NAME}'" in compose["services"]["worker"]["healthcheck"]["test"][-1]


def test_every_port_is_published_on_loopback_only(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_api_does_not_start_without_a_key(compose: dict[str, Any]) -> None:
    assert compose["services"]["api"]["environment"]["PALIMPSEST_API_KEY"].startswith("${PALIMPSEST_API_KEY:?")


def test_every_variable_given_to_the_server_is_one_of_its_settings(compose: dict[str, Any]) -> None:
    known = {f"PALIMPSEST_{name.upper()}" for name in Settings.model_fields}
    for name in OURS:
        given = set(compose["services"][name]["environment"])
        assert given <= known, name


def test_the_data_outlives_the_containers(compose: dict[str, Any]) -> None:
    assert compose["services"]["postgres"]["volumes"] == ["postgres:/var/lib/postgresql"]
    assert "postgres" in compose["volumes"]


def test_our_containers_write_nothing_and_hold_no_capability(compose: dict[str, Any]) -> None:
    for name in OURS:
        service = compose["services"][name]
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name

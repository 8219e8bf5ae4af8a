"""The output of kubectl for `deploy/kubernetes`. Needs kubectl: Debian's `kubernetes-client`, or any newer one."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from app.version import VERSION
from tests.support import manifests

ROOT = Path(__file__).parents[2]
FIRST = {"Namespace", "ServiceAccount", "ConfigMap", "Secret", "NetworkPolicy", "Job"}
"""Kinds that an upgrade applies before the servers: the migration and its requirements."""

pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None,
    reason="kubectl is not there: apt-get install --no-install-recommends kubernetes-client",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the manifests with secrets, made by the page's steps."""
    copied = tmp_path / "kubernetes"
    shutil.copytree(manifests.FOLDER, copied, ignore=shutil.ignore_patterns("secrets"))
    subprocess.run(["sh", str(ROOT / "deploy/secrets.sh"), str(copied / "secrets")], check=True)
    return copied


def kustomize(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=120)


def test_the_kustomization_is_complete(folder: Path) -> None:
    done = kustomize(folder)
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    assert len(made) == len(manifests.included()) + 2
    for one in made:
        manifests.check(one)
    assert {one["metadata"].get("namespace") for one in made if one["kind"] != "Namespace"} == {"palimpsest"}
    names = {one["kind"]: one["metadata"]["name"] for one in made}
    for _, pod, container in manifests.pods(made):
        assert container["image"] == f"registry.example/palimpsest:{VERSION}"
        assert container["envFrom"] == [{"configMapRef": {"name": names["ConfigMap"]}}]
        assert {"secretName": names["Secret"], "defaultMode": 0o440} in [each.get("secret") for each in pod["volumes"]]
    first = {
        one["kind"]
        for one in made
        if one["metadata"]["labels"]["app.kubernetes.io/component"] in ("settings", "migrate")
    }
    assert first == FIRST


def test_a_secret_that_changes_replaces_the_containers(folder: Path) -> None:
    before = kustomize(folder).stdout
    (folder / "secrets" / "api_key").write_text("pal_another_key_of_somebody")
    after = kustomize(folder).stdout
    [old, new] = (
        [pod["volumes"][0] for _, pod, _ in manifests.pods(list(yaml.safe_load_all(text)))] for text in (before, after)
    )
    assert all(one["secret"]["secretName"] != two["secret"]["secretName"] for one, two in zip(old, new, strict=True))


def test_without_its_secrets_nothing_is_made(folder: Path) -> None:
    shutil.rmtree(folder / "secrets")
    done = kustomize(folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert "api_key" in done.stderr or "secrets" in done.stderr


def test_a_misspelt_field_of_the_kustomization_is_refused(folder: Path) -> None:
    path = folder / "kustomization.yaml"
    path.write_text(path.read_text().replace("secretGenerator:", "secretGenerators:"))
    assert kustomize(folder).returncode != 0

"""The Kubernetes manifests shipped for operators, and a check of them against the schemas of Kubernetes' API."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.33", kubernetes_validate.latest_version().removesuffix(".0"))
"""The supported versions of Kubernetes: the oldest, one between, and the newest with a known schema."""
OTHERS_KINDS = frozenset({"Kustomization", "PodMonitor"})
"""Kinds that are not in Kubernetes' own API."""

Manifest = dict[str, Any]


def kustomization() -> Manifest:
    """Return the parsed kustomization.yaml."""
    parsed: Manifest = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
    return parsed


def included() -> list[Manifest]:
    """Return the manifests that the kustomization names, in its order."""
    return [one for name in kustomization()["resources"] for one in read(FOLDER / name)]


def optional() -> dict[str, Manifest]:
    """Return the manifests that are applied separately, by kind."""
    return {one["kind"]: one for path in sorted((FOLDER / "optional").glob("*.yaml")) for one in read(path)}


def read(path: Path) -> list[Manifest]:
    """Return the documents of a file with aliases expanded."""
    return [copy.deepcopy(one) for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def check(manifest: Manifest) -> None:
    """Raise if a supported version of Kubernetes rejects a manifest; unknown fields are rejected."""
    for version in VERSIONS:
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest, Manifest]]:
    """Yield the component, the pod and its only container of each workload."""
    for one in manifests:
        if one["kind"] in ("Deployment", "Job"):
            template = one["spec"]["template"]
            [container] = template["spec"]["containers"]
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"], container

"""The Kubernetes manifests that are given to operators, and a check of them against the schemas of Kubernetes' API."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.33", kubernetes_validate.latest_version().removesuffix(".0"))
"""Those of Kubernetes that the manifests are for: the oldest, one between, and the newest that is known."""
OTHERS_KINDS = frozenset({"Kustomization", "PodMonitor"})
"""Kinds that are not in Kubernetes' own API."""

Manifest = dict[str, Any]


def kustomization() -> Manifest:
    """What is put together, and what of it is the operator's."""
    parsed: Manifest = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
    return parsed


def included() -> list[Manifest]:
    """The manifests that the kustomization names, in its order."""
    return [one for name in kustomization()["resources"] for one in read(FOLDER / name)]


def optional() -> dict[str, Manifest]:
    """The manifests that are applied apart, by their kinds."""
    return {one["kind"]: one for path in sorted((FOLDER / "optional").glob("*.yaml")) for one in read(path)}


def read(path: Path) -> list[Manifest]:
    """The documents of a file; aliases are written out."""
    return [copy.deepcopy(one) for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def check(manifest: Manifest) -> None:
    """Raise what a version of Kubernetes says against a manifest: unknown fields are refused."""
    for version in VERSIONS:
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest, Manifest]]:
    """Of each workload its component, its pod and that pod's one container."""
    for one in manifests:
        if one["kind"] in ("Deployment", "Job"):
            template = one["spec"]["template"]
            [container] = template["spec"]["containers"]
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"], container

"""The dashboard and the alert rules shipped for operators."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
NAME = re.compile(r"\b((?:palimpsest|process)_\w+)\b(?!\")")


class Query(NamedTuple):
    """An expression and its location."""

    where: str
    expr: str

    @property
    def metrics(self) -> set[str]:
        """The names of the metrics it reads."""
        return set(NAME.findall(self.expr))


def dashboard() -> list[Query]:
    """Return the queries of the dashboard's panels."""
    board: dict[str, Any] = json.loads((DEPLOY / "grafana" / "palimpsest.json").read_text())
    return [
        Query(f"{panel['title']} {target['refId']}", target["expr"])
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


def alerts() -> list[dict[str, Any]]:
    """Return the alert rules."""
    [group] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules

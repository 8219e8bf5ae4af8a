"""The dashboard and the alert rules that are given to operators."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
NAME = re.compile(r"\b((?:palimpsest|process)_\w+)\b(?!\")")


class Query(NamedTuple):
    """One expression, and where it stands."""

    where: str
    expr: str

    @property
    def metrics(self) -> set[str]:
        """The names of the series that it reads."""
        return set(NAME.findall(self.expr))


def dashboard() -> list[Query]:
    """The queries of the dashboard's panels."""
    board: dict[str, Any] = json.loads((DEPLOY / "grafana" / "palimpsest.json").read_text())
    return [
        Query(f"{panel['title']} {target['refId']}", target["expr"])
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


def alerts() -> list[dict[str, Any]]:
    """The alert rules."""
    [group] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules

"""Write the tables that pages repeat from the code: knobs in docs/policies.md, settings in docs/settings.md."""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from app.core.policy.knobs import Knob, knobs_of
from app.core.policy.policy import Policy
from app.runtime.settings import Settings, secret_settings, variable

ROOT = Path(__file__).parent.parent


def write(page: Path, name: str, table: str) -> None:
    """Put the table between the page's markers `<!-- name -->` and `<!-- /name -->`."""
    text = page.read_text(encoding="utf-8")
    between = re.compile(f"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
    new, places = between.subn(lambda found: f"{found[1]}{table}{found[2]}", text)
    if places != 1:
        raise SystemExit(f"{page} has {places} places for the table {name}, not one")
    page.write_text(new, encoding="utf-8")


def knob_table() -> str:
    """Return all knobs of a policy as a Markdown table."""
    lines = ["| knob | default | what |", "|---|---|---|"]
    for path, knob, default in knobs(Policy):
        shown = "" if default is None or default == () else f"`{str(default).lower()}`"
        choices = f" One of {', '.join(f'`{choice}`' for choice in knob.choices)}." if knob.choices else ""
        unit = f" In {knob.unit}." if knob.unit else ""
        lines.append(f"| `{path}` | {shown} | {knob.sentence}{choices}{unit} |")
    return "\n".join(lines)


def knobs(group: type[Any], path: str = "") -> Iterator[tuple[str, Knob, Any]]:
    """Yield every knob of a group, and of the groups in it, with its path and its default."""
    for own in fields(group):
        knob = knobs_of(group)[own.name]
        where = f"{path}.{own.name}" if path else own.name
        if knob.kind == "group":
            yield from knobs(knob.shape, where)
        elif knob.kind == "groups":
            yield from knobs(knob.shape, f"{where}.<name>")
        else:
            yield where, knob, None if own.default is MISSING else own.default


def settings_table() -> str:
    """Return the settings as a Markdown table."""
    rows = ["| variable | default | description |", "|---|---|---|"]
    secrets = secret_settings()
    for name, info in Settings.model_fields.items():
        also = f" `{variable(name)}_FILE` may name a file with the value instead." if name in secrets else ""
        rows.append(f"| `{variable(name)}` | {_default(name, info)} | {info.description}{also} |")
    return "\n".join(rows)


def _default(name: str, info: FieldInfo) -> str:
    if name == "tiktoken_cache_dir":
        return "in the wheel, or in the virtual environment of a clone"
    return "" if info.default in (None, ()) or info.default_factory else f"`{str(info.default).lower()}`"


if __name__ == "__main__":
    write(ROOT / "docs" / "policies.md", "knobs", knob_table())
    write(ROOT / "docs" / "settings.md", "settings", settings_table())

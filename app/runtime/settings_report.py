"""Settings for people: the table in the documentation, and the current values with their origins."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from app.runtime.settings import Settings, secret_settings, variable

MASK: Final = "********"
_CREDENTIALS: Final = re.compile(r"(?<=://)([^/?#@:]*)(:[^/?#@]*)?(?=@)")


@dataclass(frozen=True)
class CurrentSetting:
    """A setting's variable, its value (JSON-compatible, secrets masked), and the origin of the value."""

    variable: str
    value: Any
    origin: str


def current_settings(settings: Settings, flags: frozenset[str]) -> Iterator[CurrentSetting]:
    """Yield all settings in the order of their table. `flags` names the settings that a flag has set."""
    values = settings.model_dump()
    for name in Settings.model_fields:
        yield CurrentSetting(variable(name), _masked_value(name, values[name]), origin(name, flags))


def origin(name: str, flags: frozenset[str] = frozenset()) -> str:
    """Return where a setting's value comes from: `flag`, `environment`, `file PATH` or `default`."""
    if name in flags:
        return "flag"
    if name in secret_settings() and (path := os.environ.get(f"{variable(name)}_FILE")):
        return f"file {path}"
    # pydantic matches variables without regard to case.
    return "environment" if variable(name) in map(str.upper, os.environ) else "default"


def lines(found: Iterator[CurrentSetting]) -> Iterator[str]:
    """Yield the settings in aligned columns: variable, value, origin."""
    rows = [(one.variable, _text(one.value), one.origin) for one in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def data_dir_line(settings: Settings, flags: frozenset[str]) -> str:
    """Return a line that says where the embedded Postgres keeps its data, and why."""
    source = origin("data_dir", flags)
    why = {"flag": "--data-dir", "environment": "PALIMPSEST_DATA_DIR"}.get(source)
    if why is None:
        other = "PALIMPSEST_DATA_DIR names another folder"
        why = f"root's folder, regardless of HOME; {other}" if os.geteuid() == 0 else other
    return f"data in {settings.data_dir} ({why})"


def table() -> str:
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


def _masked_value(name: str, value: Any) -> Any:
    if isinstance(value, SecretStr) or (name == "api_key" and value is not None):
        return MASK
    if isinstance(value, str):
        return _CREDENTIALS.sub(_masked, value)
    return str(value) if isinstance(value, Path) else value


def _masked(credentials: re.Match[str]) -> str:
    """Mask a URL's password; without one, mask the user name, which may be a token unless the URL is a database's."""
    user, password = credentials.groups()
    if password:
        return f"{user}:{MASK}"
    return user if credentials.string.startswith("postgresql") else MASK


def _text(value: Any) -> str:
    if value is None or value in ((), {}, ""):
        return "-"
    if isinstance(value, str):
        return value
    return ",".join(value) if isinstance(value, tuple) else json.dumps(value)

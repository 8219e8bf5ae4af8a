"""Rendering of the pages' templates. All values are text and are escaped; an undefined name is an error."""

import gzip
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.core.lexicon.times import in_utc, parse_time
from app.version import VERSION

if TYPE_CHECKING:
    from app.wings.pages.page import Visit

FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"
EXCERPT_CHARS: Final = 160
_UNSEEN: Final = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **{code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}
"""Control characters and marks of direction, with the texts that are shown for them."""


@cache
def assets() -> Mapping[str, tuple[bytes, bytes]]:
    """Return the static files by name: the bytes, and the bytes compressed by gzip."""
    files = sorted(STATIC.iterdir())
    return {file.name: (data := file.read_bytes(), gzip.compress(data, mtime=0)) for file in files if file.is_file()}


@cache
def _revision() -> str:
    """Return a text that changes with any static file, so that browsers may keep the files."""
    return hashlib.sha256(b"".join(data for data, _ in assets().values())).hexdigest()[:12]


def address(path: str, **query: object) -> str:
    """Return the address of a page; parameters that are None or empty are left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return quote(path, safe="/@:") + (f"?{urlencode(given)}" if given else "")


def count(value: float | None) -> str:
    """Return a number with separators, or a dash."""
    return "–" if value is None else f"{round(value):,}"


def short(value: float | None) -> str:
    """Return a number in at most four characters and a unit, such as 12.3K."""
    if value is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{round(value)}"


def percent(part: float, whole: float) -> str:
    """Return a share in percent, or a dash of nothing."""
    return f"{100 * part / whole:.1f}%" if whole else "–"


def moment(value: str | datetime | None) -> str:
    """Return a time in UTC, to the second."""
    if value is None:
        return "–"
    at = parse_time(value) if isinstance(value, str) else value
    return f"{in_utc(at):%Y-%m-%d %H:%M:%S}"


def age(value: str | datetime | None, now: datetime | None = None) -> str:
    """Return the time since a moment in its largest unit, such as `5 min ago`."""
    if value is None:
        return "never"
    at = parse_time(value) if isinstance(value, str) else value
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "just now" if seconds >= 0 else moment(at)


def plain(text: str) -> str:
    """Return text as it can be shown safely: control characters and bidirectional marks are made visible."""
    return text.translate(_UNSEEN).encode("utf-8", "replace").decode()


def excerpt(text: str, most: int = EXCERPT_CHARS) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(plain(text[: 4 * most]).split())
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


@cache
def environment() -> Environment:
    """Return the templates, with the filters above."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "count": count,
        "short": short,
        "moment": moment,
        "age": age,
        "plain": plain,
        "excerpt": excerpt,
    }
    made.globals |= {"address": address, "percent": percent, "version": VERSION, "revision": _revision()}
    return made


def render(template: str, visit: "Visit | None", values: Mapping[str, Any]) -> str:
    """Return a page. `visit` is None on pages for everybody."""
    return environment().get_template(template).render(values, visit=visit)

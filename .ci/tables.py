"""Write the tables that pages repeat from the code: knobs in docs/policies.md, settings in docs/settings.md."""

import re
from pathlib import Path

from app.core.policy.policy import knob_table
from app.runtime import settings_report

ROOT = Path(__file__).parent.parent


def write(page: Path, name: str, table: str) -> None:
    """Put the table between the page's markers `<!-- name -->` and `<!-- /name -->`."""
    text = page.read_text(encoding="utf-8")
    between = re.compile(f"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
    new, places = between.subn(lambda found: f"{found[1]}{table}{found[2]}", text)
    if places != 1:
        raise SystemExit(f"{page} has {places} places for the table {name}, not one")
    page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    write(ROOT / "docs" / "policies.md", "knobs", knob_table())
    write(ROOT / "docs" / "settings.md", "settings", settings_report.table())

"""What the documents repeat from the code is what the code says."""

import re
from pathlib import Path

from app.core.policy.policy import knob_table
from app.core.policy.presets import PRESETS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_policy_page_has_every_knob_and_every_preset() -> None:
    page = (DOCS / "policies.md").read_text(encoding="utf-8")
    table = page.split("<!-- knobs -->\n")[1].split("\n<!-- /knobs -->")[0]
    assert table == knob_table()
    assert all(f"| `{name}` |" in page for name in PRESETS)


def test_the_conformance_page_names_tests_that_exist() -> None:
    root = DOCS.parent / "tests"
    sources = "\n".join(file.read_text(encoding="utf-8") for file in root.rglob("test_*.py"))
    page = (DOCS / "conformance.md").read_text(encoding="utf-8")
    named = {name.split("::")[-1] for name in re.findall(r"`((?:test_\w+::)?test_[\w…]+)`", page)}
    names = {name for name in named if f"{name}.py" not in {file.name for file in root.rglob("test_*.py")}}
    assert len(names) > 40
    for name in names:
        assert f"def {name.rstrip('…')}" in sources, name

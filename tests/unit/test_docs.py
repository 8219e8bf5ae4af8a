"""What the documents repeat from the code is what the code says."""

import re
import tomllib
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import FunctionType
from typing import get_args

import pytest
from pydantic.fields import FieldInfo

from app.api.schemas import common as schemas
from app.core.plan import reducers
from app.core.plan.pipeline import AT_ONCE, EVICTIONS, Situation
from app.core.plan.update import PlanInputs
from app.core.policy.policy import Policy, knob_table
from app.core.policy.presets import PRESETS
from app.core.tokens.budget import Budget
from app.core.tokens.counter import HEURISTIC, Counter
from app.core.tokens.images import AREA
from migrations.tables import metadata

DOCS = Path(__file__).parents[2] / "docs"


def test_the_policy_page_has_every_knob_and_every_preset() -> None:
    page = (DOCS / "policies.md").read_text(encoding="utf-8")
    table = page.split("<!-- knobs -->\n")[1].split("\n<!-- /knobs -->")[0]
    assert table == knob_table(), "run `make tables`"
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


PAGES = (DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))
ROOMS = "api|core|services|store|worker|providers|replay|recordings|remote|transfer"
NAMED = re.compile(rf"(?<![\w/.])((?:{ROOMS})(?:/\w+)+)((?:\.[A-Za-z_]\w*)+)(?![\w/(])")
MODULES = re.compile(rf"`((?:{ROOMS})(?:/\w+)+)`")
FILES = re.compile(r"`((?:app|bench|docs|examples|migrations|openapi|tests)/[\w./-]+\.\w+)`")
COLUMN = re.compile(r"`(\w+)\.(\w+)`")


def found(module: str, names: list[str]) -> object:
    """What a document calls `module.name`, in its own module and not only passed on by it. Raises AttributeError."""
    thing: object = import_module(f"app.{module.replace('/', '.')}")
    for depth, name in enumerate(names):
        if depth and name in getattr(thing, "__dataclass_fields__", {}):
            return thing
        if depth and name in getattr(thing, "__annotations__", {}):
            return thing
        thing = getattr(thing, name)
        if not depth and isinstance(thing, type | FunctionType):
            assert thing.__module__ == f"app.{module.replace('/', '.')}", f"{name} is not at home in {module}"
    return thing


def named(text: str) -> list[tuple[str, list[str]]]:
    """Every `room/module.name` of a text; a path that ends in `.py` or `.md` is a file and no name."""
    names = ((module, dotted.split(".")[1:]) for module, dotted in NAMED.findall(text))
    return [(module, parts) for module, parts in names if parts[0] not in ("py", "md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for module, names in named(text):
        assert found(module, names) is not None, (module, names)
    for module in MODULES.findall(text):
        assert import_module(f"app.{module.replace('/', '.')}")
    for path in FILES.findall(text):
        assert (DOCS.parent / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_term_of_the_glossary_is_carried_by_the_code() -> None:
    tables = {table.name: set(table.columns.keys()) for table in metadata.sorted_tables}
    rows = re.findall(r"^\| (?!term|---)(.+?) \| (.+?) \| (.+?) \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(rows) > 80
    assert len({term for term, _, _ in rows}) == len(rows)
    for term, meaning, where in rows:
        assert meaning.count(". ") == 0 and meaning.endswith("."), (term, "one sentence")
        columns = COLUMN.findall(where)
        for table, column in columns:
            assert column in tables[table], (term, table, column)
        assert len(columns) + len(named(where)) == where.count("`") // 2 > 0, (term, where)


def test_the_rooms_are_those_of_the_contracts() -> None:
    """The page has every room of the core, in the order in which the import contract has them."""
    contracts = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one.get("containers") == ["app.core"])
    section = (
        (DOCS / "architecture.md").read_text(encoding="utf-8").split("## The rooms of the core")[1].split("\n## ")[0]
    )
    rooms = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    level = {room: number for number, layer in enumerate(layers) for room in layer.split(" | ")}
    assert sorted(rooms) == sorted(level)
    assert [level[room] for room in rooms] == sorted(level[room] for room in rooms)


def test_the_reducer_of_the_guide_is_the_one_that_is_tested() -> None:
    guide = (DOCS / "guides" / "add-a-reducer.md").read_text(encoding="utf-8")
    tested = (DOCS.parent / "tests" / "unit" / "test_adding_a_reducer.py").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 2
    assert all(block in tested for block in blocks)


def test_the_api_document_names_every_reducer() -> None:
    modules = [import_module(found.name) for found in iter_modules(reducers.__path__, f"{reducers.__name__}.")]
    names = {module.REDUCER for module in modules if hasattr(module, "REDUCER")}
    budget = Budget(window=100, reserve=0, injection_reserve=0, target=100, goal=70)
    at = Situation(PlanInputs((), 0, Counter(HEURISTIC, AREA)), budget, Policy(), force=False)
    for row in (*AT_ONCE, *EVICTIONS):
        kind = type(row.reducer(at))
        assert getattr(import_module(kind.__module__), "REDUCER", None) in names, (
            f"the module of {kind.__name__} has no name for it"
        )
    [field] = [one for one in get_args(schemas.Reducer) if isinstance(one, FieldInfo)]
    described = set(re.findall(r"`(\w+)`", field.description or ""))
    differ = sorted(described ^ (names | {"prefix", "format"}))
    assert not differ, f"the description of `Reducer` in app/api/schemas/common.py and the reducers differ in {differ}"


def test_the_routes_of_the_guide_are_there() -> None:
    guide = (DOCS / "guides" / "add-an-endpoint.md").read_text(encoding="utf-8")
    routes = DOCS.parent / "app" / "api" / "routes"
    read, write = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert read in (routes / "turns.py").read_text(encoding="utf-8")
    assert write in (routes / "forks.py").read_text(encoding="utf-8")

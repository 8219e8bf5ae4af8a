"""Documents agree with the code that they repeat."""

import ast
import json
import re
import runpy
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import FunctionType
from typing import get_args

import click
import pytest
import typer
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

from app.cli.main import app
from app.core.plan import reducers
from app.core.plan.pipeline import EVICTIONS, UNCONDITIONAL, Situation
from app.core.plan.update import PlanInputs
from app.core.policy.policy import PRESETS, Policy
from app.core.tokens.budget import Budget
from app.core.tokens.counter import HEURISTIC, Counter
from app.core.tokens.scales import AREA
from app.http import fields as schemas
from app.runtime.settings import Settings
from migrations.tables import metadata
from tests.acceptance.test_pages import PAGES as PAGES_READ
from tests.support.installers import named_to_install
from tests.support.pages import RUN_AS, blocks

DOCS = Path(__file__).parents[3] / "docs"


def test_the_policy_page_has_every_knob_and_every_preset() -> None:
    page = (DOCS / "policies.md").read_text(encoding="utf-8")
    table = page.split("<!-- knobs -->\n")[1].split("\n<!-- /knobs -->")[0]
    tables = runpy.run_path(str(DOCS.parent / ".ci" / "tables.py"))
    assert table == tables["knob_table"](), "run `make tables`"
    assert all(f"| `{name}` |" in page for name in PRESETS)


def test_the_settings_page_has_every_setting() -> None:
    table = runpy.run_path(str(DOCS.parent / ".ci" / "tables.py"))["settings_table"]()
    assert all(f"| `PALIMPSEST_{name.upper()}` |" in table for name in Settings.model_fields)
    assert table in (DOCS / "settings.md").read_text(encoding="utf-8"), "run `make tables`"


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
ROOMS = "cli|core|http(?!/protobuf)|resources|runtime|store|wings|palimpsest_tools"
NAMED = re.compile(
    rf"(?<![\w/.])((?:{ROOMS})(?:/\w+)+|app/(?:providers|tenants|worker))((?:\.[A-Za-z_]\w*)+)(?![\w/(])"
)
MODULES = re.compile(rf"`((?:{ROOMS})(?:/\w+)+)`")
FILES = re.compile(r"`(?!app/\w+\.(?!py`))((?:app|bench|docs|examples|migrations|openapi|tests|tools)/[\w./-]+\.\w+)`")
BESIDE = re.compile(r"((?:`[^`\n]+`(?:,? and|,)?\s+)+)(?:in\s+|\()`((?:app|bench|migrations|tests|tools)/[\w/]+\.py)`")
"""Names before the path of their module: `Sid` and `limit: Limit` (`app/http/fields.py`)."""
COLUMN = re.compile(r"`(\w+)\.(\w+)`")


def dotted(module: str) -> str:
    """The name of a module that a document calls by its path."""
    return f"{'' if module.startswith(('palimpsest_tools/', 'app/')) else 'app.'}{module.replace('/', '.')}"


def find_object(module: str, names: list[str]) -> object:
    """Return the object that a document calls `module.name`, defined in that module. Raises AttributeError."""
    thing: object = import_module(dotted(module))
    for depth, name in enumerate(names):
        if depth and name in getattr(thing, "__dataclass_fields__", {}):
            return thing
        if depth and name in getattr(thing, "__annotations__", {}):
            return thing
        thing = getattr(thing, name)
        if not depth and isinstance(thing, type | FunctionType):
            assert thing.__module__ == dotted(module), f"{name} is not at home in {module}"
    return thing


def names_in(text: str) -> list[tuple[str, list[str]]]:
    """Return every `room/module.name` of a text; a path that ends in `.py` or `.md` is a file and no name."""
    names = ((module, tail.split(".")[1:]) for module, tail in NAMED.findall(text))
    return [(module, parts) for module, parts in names if parts[0] not in ("py", "md")]


@pytest.mark.wing("all")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_on_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for module, names in names_in(text):
        assert find_object(module, names) is not None, (module, names)
    for module in MODULES.findall(text):
        assert import_module(dotted(module))
    for path in FILES.findall(text):
        assert (DOCS.parent / path).exists(), path


def defined(path: Path) -> Iterator[str]:
    """Yield the names that a module defines, without those that it imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


@pytest.mark.wing("all")
def test_names_beside_the_path_of_a_module_are_defined_there() -> None:
    found = [
        (page.name, name, path)
        for page in PAGES
        for names, path in BESIDE.findall(page.read_text(encoding="utf-8"))
        for name in re.findall(r"`(?:\w+: |\w+\.)?(\w+)`", names)
    ]
    assert len(found) > 20
    assert not [one for one in found if one[1] not in defined(DOCS.parent / one[2])]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_on_a_page_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_make_commands_on_pages_exist() -> None:
    """A benchmark's docstring, from which `make bench` lists it, names its own folder."""
    root = DOCS.parent
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    benches = {path.parent.name: path.read_text(encoding="utf-8") for path in root.glob("bench/*/__main__.py")}
    known = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    known |= {f"test-more NAME={name}" for name in re.findall(r"^SUITE_([a-z-]+) = .* ## ", makefile, re.MULTILINE)}
    known |= {f"bench NAME={name}" for name, text in benches.items() if text.startswith(f'"""`make bench NAME={name}')}
    assert len([name for name in known if name.startswith("bench ")]) == len(benches) - 1, "all but bench.walks"
    run = (root / ".ci" / "run").read_text(encoding="utf-8")
    texts = [run, *(page.read_text(encoding="utf-8") for page in PAGES if page.name != "example.md")]
    named = {name for text in texts for name in re.findall(r"(?:^|`)make ([a-z-]+(?: NAME=[a-z-]+)?)", text, re.M)}
    assert named > {"run", "test-more NAME=slow", "bench NAME=speed"}
    assert named - known == set()


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
        assert len(columns) + len(names_in(where)) == where.count("`") // 2 > 0, (term, where)


def test_the_packages_are_those_of_the_contracts() -> None:
    """The page lists every package of the core, in the order of the import contract."""
    contracts = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one.get("containers") == ["app.core"])
    section = (
        (DOCS / "architecture.md").read_text(encoding="utf-8").split("## The packages of the core")[1].split("\n## ")[0]
    )
    rooms = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    level = {room: number for number, layer in enumerate(layers) for room in layer.split(" | ")}
    assert sorted(rooms) == sorted(level)
    assert [level[room] for room in rooms] == sorted(level[room] for room in rooms)


def test_the_reducer_of_the_guide_is_the_one_that_is_tested() -> None:
    guide = (DOCS / "guides" / "add-a-reducer.md").read_text(encoding="utf-8")
    tested = (DOCS.parent / "tests" / "unit" / "plan" / "test_adding_a_reducer.py").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 2
    assert all(block in tested for block in blocks)


def test_the_api_document_names_every_reducer() -> None:
    modules = [import_module(found.name) for found in iter_modules(reducers.__path__, f"{reducers.__name__}.")]
    names = {module.REDUCER for module in modules if hasattr(module, "REDUCER")}
    budget = Budget(window=100, reserve=0, injection_reserve=0, target=100, goal=70)
    at = Situation(PlanInputs((), 0, Counter(HEURISTIC, AREA)), budget, Policy(), force=False)
    for row in (*UNCONDITIONAL, *EVICTIONS):
        kind = type(row.reducer(at))
        assert getattr(import_module(kind.__module__), "REDUCER", None) in names, (
            f"the module of {kind.__name__} has no name for it"
        )
    [field] = [one for one in get_args(schemas.Reducer) if isinstance(one, FieldInfo)]
    described = set(re.findall(r"`(\w+)`", field.description or ""))
    differ = sorted(described ^ (names | {"prefix", "format"}))
    assert not differ, f"the description of `Reducer` in app/http/fields.py and the reducers differ in {differ}"


def test_causes_of_epochs_are_described_in_the_api_and_in_the_policy_page() -> None:
    [field] = [one for one in get_args(schemas.EpochCause) if isinstance(one, FieldInfo)]
    described = set(re.findall(r"`(\w+)`", field.description or "")) - {"force"}  # the name of a request's field
    table = (DOCS / "policies.md").read_text(encoding="utf-8").split("| cause |")[1].split("\n\n")[0]
    listed = {name for line in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert described == listed, f"EpochCause and docs/policies.md differ in {sorted(described ^ listed)}"
    missing = {row.cause for row in (*UNCONDITIONAL, *EVICTIONS) if row.cause} - listed
    assert not missing, f"EpochCause in app/http/fields.py and docs/policies.md lack the causes {sorted(missing)}"


def test_the_routes_of_the_guide_exist() -> None:
    guide = (DOCS / "guides" / "add-an-endpoint.md").read_text(encoding="utf-8")
    resources = DOCS.parent / "app" / "resources"
    read, write = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert read in (resources / "turns.py").read_text(encoding="utf-8")
    assert write in (resources / "lines" / "routes.py").read_text(encoding="utf-8")


def distribution(project: Path) -> str:
    name = tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"]
    assert isinstance(name, str)
    return name


OURS = frozenset(distribution(DOCS.parent / place) for place in ("", "clients/python", "tools"))
OTHERS = frozenset(
    {
        "@ai-sdk/openai",
        "@mastra/core",
        "ai",
        "anthropic",
        "google-genai",
        "langchain-openai",
        "openai",
        "pydantic-ai-slim",
        "tsx",
    }
)
"""Packages of others that a page tells its reader to install."""


def tracked(*patterns: str) -> list[str]:
    """Return the files of the working tree that git tracks or would add."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns)
    listed = subprocess.run(command, cwd=DOCS.parent, capture_output=True, check=True, text=True).stdout.split()
    return [name for name in listed if (DOCS.parent / name).is_file()]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "`pip install palimpsest`, pip install -r a.lock --quiet ./clients/python 'b[c]>=1' && uvx d",
            "palimpsest b d",
        ),
        ("pip  install   palimpsest", "palimpsest"),
        ("pip3.11 install -U palimpsest==0.0.2", "palimpsest"),
        ("python3.11 -m pip install palimpsest", "palimpsest"),
        ("python -m pip --cache-dir a -q install palimpsest", "palimpsest"),
        (".venv/bin/pip install -e clients/python --index-url https://a.example/b palimpsest", "palimpsest"),
        ("pip install openai \\\n    palimpsest-client  # of others", "openai palimpsest-client"),
        ('pip install \'palimpsest[gateway] >= 1, < 2; python_version < "3.12"\' "b~=1.0"', "palimpsest b"),
        ('pip install "palimpsest@git+https://a.example/b"; c', "palimpsest"),
        ("uv pip install --system palimpsest", "palimpsest"),
        ("uv add --dev palimpsest && uv tool install palimpsest-client", "palimpsest palimpsest-client"),
        ("poetry add --group dev palimpsest@^1", "palimpsest"),
        ("pdm add -G test palimpsest", "palimpsest"),
        ("conda install -c conda-forge palimpsest", "palimpsest"),
        ("mamba create -n a palimpsest", "palimpsest"),
        ("pipenv install palimpsest", "palimpsest"),
        ("uv run --with palimpsest,openai --with=httpx server.py", "palimpsest openai httpx"),
        ("uv run server.py --with b", ""),
        ("uvx --from palimpsest-client palimpsest serve", "palimpsest-client"),
        ("uvx palimpsest@latest serve", "palimpsest"),
        ("pipx run --spec 'palimpsest[a]==1' serve", "palimpsest"),
        ("pipx run palimpsest serve --port 1", "palimpsest"),
        ("uv tool run --from=palimpsest serve", "palimpsest"),
        ("npx @palimpsest/client -y; pnpm dlx c; npm i -D d", "@palimpsest/client c d"),
        ("`pip` installs what pip install-time hooks and a pip installer need", ""),
    ],
)
def test_the_names_that_are_installed_are_found(text: str, names: str) -> None:
    assert list(named_to_install(text)) == names.split()


@pytest.mark.wing("all")
def test_pages_install_only_known_packages() -> None:
    """The names `palimpsest` and `palimpsest-client` belong to others on the index."""
    assert {"palimpsest-context", "palimpsest-context-client", "palimpsest-context-tools"} == OURS
    kinds = (".md", ".sh", ".yml", ".yaml", ".toml", ".py", ".html", "Makefile", "Dockerfile", ".ci/run")
    files = [one for one in tracked() if one.endswith(kinds) and not one.startswith("tests/")]
    assert len(files) > 400
    strange = [
        (file, name)
        for file in files
        for name in named_to_install((DOCS.parent / file).read_text(encoding="utf-8"))
        if name not in OURS | OTHERS
    ]
    assert strange == []


def test_the_readme_says_which_names_are_not_ours() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert "`palimpsest` and `palimpsest-client` on PyPI are unrelated projects" in readme
    assert all(f"`{name}`" in readme for name in OURS)


RUN_BY_STEP = re.compile(r"<!-- (?:step: |walk:)\w+ -->\n\Z")
"""A block that a test of its page runs by name."""
FRAGMENTS = ("CONTRIBUTING.md", "docs/architecture.md", "docs/guides/", "tests/")
"""Pages for contributors, whose blocks are fragments of the code."""


@pytest.mark.wing("all")
def test_every_command_of_a_page_is_run_or_gives_a_reason() -> None:
    listed = tracked("*.md")
    left = []
    for name in listed:
        if name in PAGES_READ or name.startswith(FRAGMENTS):
            continue
        page = (DOCS.parent / name).read_text(encoding="utf-8")
        lines = page.splitlines(keepends=True)
        left += [
            f"{name}:{block.line}"
            for block in blocks(page)
            if block.language in RUN_AS
            and block.reason is None
            and not RUN_BY_STEP.search("".join(lines[: block.line - 1]))
        ]
    assert left == []
    assert set(PAGES_READ) <= set(listed)


def test_the_readme_shows_the_defaults_of_a_policy() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    shown = json.loads(readme.split("<!-- defaults -->\n```json\n")[1].split("```")[0])

    def check(part: dict[str, object], whole: dict[str, object]) -> None:
        for name, value in part.items():
            if isinstance(value, dict) and value:
                check(value, whole[name])  # type: ignore[arg-type]
            else:
                assert whole[name] == value, name

    check(shown, json.loads(json.dumps(asdict(Policy()))))
    assert len(shown) > 5


def test_the_readmes_statements_about_settings_hold() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `PALIMPSEST_(\w+)` \|(.*?)\|", readme, re.MULTILINE)
    assert len(rows) > 5
    for name, default in rows:
        field = Settings.model_fields[name.lower()]
        if name not in ("DATA_DIR", "URL"):
            assert default.strip("` ") == ("" if field.default is None else str(field.default)), name


def test_pictures_and_help_have_no_marks_of_markdown() -> None:
    assert not [file.name for file in DOCS.glob("*.svg") if "`" in file.read_text(encoding="utf-8")]

    def helps(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
        yield path, command.help or ""
        for parameter in command.params:
            yield f"{path} {parameter.name}", getattr(parameter, "help", None) or ""
        if isinstance(command, TyperGroup):
            context = typer.Context(command)
            for name in command.list_commands(context):
                yield from helps(command.get_command(context, name), f"{path} {name}")

    found = dict(helps(typer.main.get_command(app), "palimpsest"))
    assert len(found) > 60
    assert not [path for path, text in found.items() if "`" in text]

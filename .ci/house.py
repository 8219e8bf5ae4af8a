"""Hold the size and the shape of the code: `make check` fails when a figure is above its ceiling in `.ci/limits.toml`.

    python .ci/house.py            compare all figures with their ceilings, and docs/walk.md with the walks
    python .ci/house.py --lower    first lower every ceiling to today's figure, and write docs/walk.md (`make tables`)

A ceiling is never raised by this program. A change that needs more lines takes others away, or raises the ceiling by
hand and gives the reason in its commit.
"""

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
APP = ROOT / "app"
LIMITS = ROOT / ".ci" / "limits.toml"
EXCEEDED = (
    "remove lines, or what else the figure counts, or raise the limit in .ci/limits.toml by hand and say why in the "
    "commit; see CONTRIBUTING.md, Rules"
)
WALK_PAGE = ROOT / "docs" / "walk.md"

MODULE_LINES_MAX = 400
SMALL_MODULE_LINES = 60
FUNCTION_LINES_MAX = 60
WING_LINES_MAX = 2_000
MAY_IMPORT_WINGS = {"wings", "main.py", "wiring.py", "runtime", "cli", "cli.py"}
"""Top-level parts of `app` that put the server together, and so may name a wing."""
SHARDS = re.compile(r"(?i)shard|citus|\bdistributed\b")
"""Words, in code, names and comments, that only the wing of shards has a use for."""

HARD_PHRASES = [
    re.compile(pattern)
    for pattern in (
        r"^(What|Who|Whose|Whom|Which|Where|When)\b(?!.*\?)",
        r"^How (many|much|old|near|far|late|it|a|an|the|often|long|sessions|each)\b",
        r"^(The same|As `|As the|Of )",
        r"\b(so many|so much|by so much|about so)\b",
        r"\b(what (is|was|has|had|came|comes|it|they|a|an|the|this))\b",
        r"\b(whoever|for whoever|who (asks|waits|comes|goes|has|looks|reads|may|knows|wants|lacks))\b",
        r"\b(told|tells? of|is told|said of|says? of)\b",
        r"\b(stands? so|still stands|stands (for|by|in|on)|still so)\b",
        r"\b(came to|comes? to|come of|came of|comes of)\b",
        r"\b(beside|behind|in front of)\b",
        r"\b(goes on|go on|went on|going on|at once|by itself|anew|afresh|be it|for ever)\b",
        r"(^|\. )(Of|By|In|To|For|With|Without|From|Behind|Beside) [^.,:]{3,60},?"
        r" (is|are|it|there|its|only|nothing|a|the) ",
    )
]
"""Turns of phrase that a reader has to read twice. About one match in five is innocent."""

OPENINGS = re.compile(r"^(What|Who|Whose|Whom|Which|Where|How|Of|So many|So much|The same|As)\b(?!.*\?)")
"""Words with which no docstring begins: the subject comes first."""
VAGUE_NAMES = {
    *("afresh", "again", "ahead", "anew", "apart", "aside", "asked", "behind", "beside", "busy", "demanded", "done"),
    *("given", "gone", "kept", "late", "left", "local", "made", "once", "over", "reach", "said", "seen", "shown"),
    *("standing", "taken", "told", "together", "until", "wanted", "whole", "within", "without", "worth"),
}
"""Participles, adverbs and prepositions that say nothing as the whole name of a function or a class."""


def modules(folder: Path) -> list[Path]:
    """The folder's Python files, in order, without those of virtual environments."""
    return [path for path in sorted(folder.rglob("*.py")) if not any(p.startswith(".venv") for p in path.parts)]


@cache
def tree(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def docstrings(paths: Iterable[Path]) -> Iterator[str]:
    """Every string that is a statement, as one line: docstrings, and the texts below constants and fields."""
    for path in paths:
        for node in ast.walk(tree(path)):
            body = getattr(node, "body", None)
            for statement in body if isinstance(body, list) else ():
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield " ".join(text.split())


def hard_phrases_share(paths: list[Path]) -> float:
    """The share of docstrings that match a pattern of `HARD_PHRASES`, in percent."""
    texts = list(docstrings(paths))
    return round(100 * sum(any(p.search(text) for p in HARD_PHRASES) for text in texts) / max(1, len(texts)), 1)


def hard_phrases_of_pages() -> float:
    """Matches of `HARD_PHRASES` in a thousand words of the pages, code blocks left out."""
    matches = words = 0
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for sentence in re.split(r"\n\s*\n|(?<=[.!?])\s", text):
            words += len(sentence.split())
            matches += sum(bool(pattern.search(sentence.strip())) for pattern in HARD_PHRASES)
    return round(1000 * matches / max(1, words), 1)


def lines_of(paths: Iterable[Path]) -> int:
    """Count the lines of the files."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def wing_of(path: Path) -> str | None:
    """The wing that the module belongs to; None for the kernel."""
    parts = path.relative_to(APP).parts
    return parts[1] if parts[0] == "wings" and len(parts) > 2 else None


def wing_imports(paths: list[Path]) -> Iterator[tuple[Path, str]]:
    """Each import of a wing that breaks a rule: by the kernel, or by another wing."""
    for path in paths:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("app.wings."):
                wing = (node.module or "").split(".")[2]
                if wing_of(path) != wing and path.relative_to(APP).parts[0] not in MAY_IMPORT_WINGS - {"wings"}:
                    yield path, wing


def restated_fields(paths: list[Path]) -> int:
    """Keys of dictionaries that repeat the name of a field of an answer, which its schema already declares."""
    fields = set()
    for path in paths:
        if "schemas" in path.parts or path.name in ("routes.py", "schemas.py") or path.parent.name == "resources":
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.ClassDef):
                    fields |= {
                        s.target.id
                        for s in node.body
                        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
                    }
    dicts = (node for path in paths for node in ast.walk(tree(path)) if isinstance(node, ast.Dict))
    return sum(isinstance(key, ast.Constant) and key.value in fields for node in dicts for key in node.keys)


def vague_names(paths: list[Path]) -> int:
    """Count the public functions and classes whose whole name is one of `VAGUE_NAMES`."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = (node for path in paths for node in ast.walk(tree(path)) if isinstance(node, kinds))
    return sum(node.name.lower() in VAGUE_NAMES for node in nodes)


def make_targets() -> int:
    """Count the targets of the Makefile."""
    return len(set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)))


def figures_of_text() -> dict[str, float]:
    """All figures that need only the text, by name."""
    paths = modules(APP)
    sizes = {path: lines_of([path]) for path in paths}
    wings: Counter[str] = Counter()
    for path, size in sizes.items():
        wings[wing_of(path) or ""] += size
    return {
        "lines of app": sum(sizes.values()),
        "lines of the kernel": wings.pop("", 0),
        "lines of the tools": lines_of(modules(ROOT / "tools")),
        "modules": len(paths),
        f"modules under {SMALL_MODULE_LINES} lines": sum(
            size < SMALL_MODULE_LINES and path.name != "__init__.py" for path, size in sizes.items()
        ),
        "imports of a wing by the kernel or another wing": len(list(wing_imports(paths))),
        "places that know of shards": sum(
            len(SHARDS.findall(path.read_text(encoding="utf-8"))) for path in paths if wing_of(path) != "shards"
        ),
        "fields of answers restated as keys": restated_fields(paths),
        "hard phrases in app, percent": hard_phrases_share(paths),
        "hard phrases in tests, percent": hard_phrases_share(modules(ROOT / "tests")),
        "hard phrases in bench, percent": hard_phrases_share(modules(ROOT / "bench")),
        "hard phrases in the client, percent": hard_phrases_share(modules(ROOT / "clients" / "python" / "palimpsest")),
        "hard phrases in a thousand words of the pages": hard_phrases_of_pages(),
        "vague names": vague_names([*paths, *modules(ROOT / "tools"), *modules(ROOT / "bench")]),
        "make targets": make_targets(),
    }


def large_wings() -> Iterator[str]:
    """A line for each wing with more than WING_LINES_MAX lines."""
    for folder in sorted((APP / "wings").glob("*/")):
        if (lines := lines_of(modules(folder))) > WING_LINES_MAX:
            yield f"the wing {folder.name} has {lines} lines, and no more than {WING_LINES_MAX} are allowed"


def oversized() -> Iterator[str]:
    """A line for each module and each function of `app` that is longer than any may be."""
    for path in modules(APP):
        if (lines := lines_of([path])) > MODULE_LINES_MAX:
            yield f"{path.relative_to(ROOT)} has {lines} lines, and no more than {MODULE_LINES_MAX} are allowed"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield f"{place}: {node.name} has {lines} lines, and no more than {FUNCTION_LINES_MAX} are allowed"


def double_names() -> Iterator[str]:
    """A line for each public class name that two modules of `app` and `tools` define: a name is to mean one thing."""
    classes = defaultdict(list)
    for path in (*modules(APP), *modules(ROOT / "tools")):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(str(path.relative_to(ROOT)))
    for name, places in sorted(classes.items()):
        if len(places) > 1:
            yield f"the class name {name} is used in {', '.join(places)}"


def wrong_openings() -> Iterator[str]:
    """A line for each docstring that begins with one of `OPENINGS`."""
    for folder in ("app", "tools", "clients/python", "tests", "bench", "examples", ".ci"):
        for path in modules(ROOT / folder):
            for text in docstrings([path]):
                if OPENINGS.match(text):
                    yield f"{path.relative_to(ROOT)}: a docstring begins with {text.split()[0]!r}: {text[:60]}"


def limits_text(ceilings: dict[str, float]) -> str:
    """The text of `limits.toml`."""
    head = "# Ceilings of .ci/house.py; `make tables` lowers them to today's figures.\n"
    return head + "".join(f'"{name}" = {ceiling:g}\n' for name, ceiling in ceilings.items())


def main() -> int:
    """Print each fault; 1 if there are any."""
    sys.path.insert(0, str(ROOT))
    from bench import walks

    walked = walks.take()
    figures = figures_of_text() | walks.figures(walked)
    page = walks.page(walked)
    ceilings = tomllib.loads(LIMITS.read_text(encoding="utf-8")) if LIMITS.exists() else {}
    if "--lower" in sys.argv[1:]:
        ceilings = {name: min(figure, ceilings.get(name, figure)) for name, figure in figures.items()}
        LIMITS.write_text(limits_text(ceilings), encoding="utf-8")
        WALK_PAGE.write_text(page, encoding="utf-8")
    faults = [*oversized(), *large_wings(), *double_names(), *wrong_openings()]
    if unknown := figures.keys() ^ ceilings.keys():
        faults.append(f"figures without a ceiling, or ceilings without a figure: {', '.join(sorted(unknown))}")
    exceeded = [
        f"{name}: {figures[name]:g}, and no more than {ceilings[name]:g} are allowed"
        for name in ceilings
        if figures.get(name, 0) > ceilings[name]
    ]
    faults += [*exceeded, EXCEEDED] if exceeded else []
    if WALK_PAGE.read_text(encoding="utf-8") != page:
        faults.append("docs/walk.md is not what the requests pass today: write it by `make tables`")
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""Fail on disorder in the house: a public class name used twice in `app` and `tools`, or a module loose in the core.

A stranger who finds one name expects one thing behind it, and looks for a module in the room it belongs to. Everything
in `app/core` is in a package; `assemble.py` alone stands at the top, because it is made of all of them.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
APP, TOOLS = ROOT / "app", ROOT / "tools" / "palimpsest_tools"
AT_THE_TOP = {"__init__.py", "assemble.py"}


def main() -> int:
    """Print each fault; 1 if there are any."""
    loose = sorted(path.name for path in APP.glob("core/*.py") if path.name not in AT_THE_TOP)
    faults = [f"app/core/{name} is in no package" for name in loose]
    classes = defaultdict(list)
    for path in sorted((*APP.rglob("*.py"), *TOOLS.rglob("*.py"))):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(str(path.relative_to(ROOT)))
    twice = ((name, places) for name, places in sorted(classes.items()) if len(places) > 1)
    faults += [f"the class name {name} is used in {', '.join(places)}" for name, places in twice]
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

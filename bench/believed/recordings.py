"""Public data as neutral JSONL files, for the benchmarks that replay recordings.

    python -m bench.believed.recordings --claude-code CHECKPOINTS --locomo locomo10.json --out RECORDINGS

writes `coding_agent.jsonl`, from a checkout of the branch with the logs of a coding agent: the 23 sessions that the
pages of this repository measure. `long_dialogue.jsonl` and `other_dialogue.jsonl` are LoCoMo's dialogues: those that
the search was developed on, and the others.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from bench.believed import claude_code, locomo
from bench.believed.downloads import UnknownData

GET_IT: Final = (
    "Check out https://github.com/entireio/cli at commit 394f81fab87f71aa8938d91ff7a067c524ff344b of its branch"
    " entire/checkpoints/v1."
)
CHECKPOINTS: Final = (
    *("89/7eb280e769/12", "5e/5207b424e2/0", "cc/90f6622c5b/1", "a5/d8ec9bae67/0", "ad/ff0201aecb/0"),
    *("4c/ff5845d5a2/0", "38/346dbfe2e0/0", "89/7eb280e769/18", "6d/9f76bd01e9/0", "23/72de7ea2ff/0"),
    *("b0/dc55b3a1dc/1", "a7/98c50803fd/0", "14/0612f29948/0", "91/5ce19ee748/0", "3d/ffd2ffdd52/0"),
    *("81/de29e2290e/0", "45/b48f42ab1f/0", "d4/1769f480b6/0", "47/01adf9da1a/0", "bb/781d6f3a8e/0"),
    *("3b/ff9e85c79b/0", "84/a4728b5e36/0", "23/73a92c6c40/0"),
)
"""Folders of the 23 sessions, the longest first."""


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claude-code", type=Path, help="a checkout of the branch entire/checkpoints/v1")
    parser.add_argument("--locomo", type=Path, help="LoCoMo's locomo10.json")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write, created if there is none")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        if given.claude_code:
            write(given.out / "coding_agent.jsonl", coding(given.claude_code))
        if given.locomo:
            dialogues = list(locomo.dialogues(given.locomo))
            seen = {f"locomo-{name}" for name in locomo.SEEN}
            write(given.out / "long_dialogue.jsonl", [one for one in dialogues if one["id"] in seen])
            write(given.out / "other_dialogue.jsonl", [one for one in dialogues if one["id"] not in seen])
    except UnknownData as error:
        sys.exit(str(error))


def coding(folder: Path) -> list[dict[str, Any]]:
    """Return the 23 sessions. Raises UnknownData."""
    found = []
    for name in CHECKPOINTS:
        file = folder / name / "full.jsonl"
        if not file.exists():
            raise UnknownData(f"{file} does not exist. {GET_IT}")
        value = claude_code.neutral(name.replace("/", "-"), file.read_text(encoding="utf-8", errors="replace"))
        if value is None:
            raise UnknownData(f"{file} holds no conversation. {GET_IT}")
        found.append(value)
    return found


def write(file: Path, sessions: Iterable[dict[str, Any]]) -> None:
    """Write sessions, one a line."""
    lines = [json.dumps(one, ensure_ascii=False) + "\n" for one in sessions]
    file.write_text("".join(lines), encoding="utf-8")
    print(f"{file}: {len(lines)} sessions")


if __name__ == "__main__":
    main()

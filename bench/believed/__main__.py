"""`make bench NAME=believed ARGS="--locomo FILE --beam FOLDER"`: figures from data that anyone can download.

The protocol, the results and the ways to get the data: docs/believed.md.

* --locomo locomo10.json: evidence before the model in LoCoMo, by category; dialogues that the search was developed on
  apart from the others.
* --beam chats/100K chats/500K: the same in BEAM, by ability.
* --claude-code folder: the summaries of Claude Code's compactions in its logs, against ours of the same size.
* --data folder (RECORDINGS=folder): the same for the compactions in neutral JSONL files.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

from bench.believed import beam, claude_code, compactions, locomo, tables
from bench.believed.conversations import conversation
from bench.believed.downloads import UnknownData
from bench.believed.evidence import Found, measure
from bench.quality.servers import Stack, a_stack

Group: TypeAlias = tuple[str, Callable[[Found], bool]]
LOCOMO_WINDOWS: Final = (8_192, 16_384, 32_768)
BEAM_WINDOWS: Final = (16_384, 32_768, 65_536)


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--locomo", type=Path, help="LoCoMo's locomo10.json")
    parser.add_argument("--beam", type=Path, nargs="+", default=[], help="BEAM's folders, such as chats/100K")
    parser.add_argument("--claude-code", type=Path, help="a folder with session logs of Claude Code")
    parser.add_argument("--data", type=Path, help="a folder of neutral JSONL recordings")
    parser.add_argument("--windows", type=int, nargs="+", help="tokens of the windows, instead of the protocol's")
    parser.add_argument("--first", type=int, help="only the first conversations")
    parser.add_argument("--results", type=Path, help="keep results in this file; a run continues what is in it")
    given = parser.parse_args()
    if not (given.locomo or given.beam or given.claude_code or given.data):
        parser.error("no data: name at least one of --locomo, --beam, --claude-code and --data")
    try:
        asyncio.run(run(given))
        if given.claude_code or given.data:
            print(real_compactions(sessions(given)))
    except UnknownData as error:
        sys.exit(str(error))


async def run(given: argparse.Namespace) -> None:
    """Measure and print what was asked for."""
    kept = Results(given.results)
    if given.locomo:
        values = islice(locomo.dialogues(given.locomo), given.first)
        found = await evidence(values, given.windows or LOCOMO_WINDOWS, kept)
        seen = {f"locomo-{name}" for name in locomo.SEEN}
        groups: list[Group] = [
            ("all", lambda one: True),
            ("five dialogues that were not used before", lambda one: one.conversation not in seen),
            ("five that recall was developed on", lambda one: one.conversation in seen),
        ]
        print(report("LoCoMo", found, groups), flush=True)
    for folder in given.beam:
        values = islice(beam.conversations(folder), given.first)
        found = await evidence(values, given.windows or BEAM_WINDOWS, kept)
        print(report(f"BEAM, {folder.name}", found, [("all", lambda one: True)]), flush=True)


class Results:
    """Results in a file, one question a line, so that an interrupted run continues where it stopped."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else ()
        self._found = [_read(line) for line in lines]

    def of(self, conversation: str, window: int) -> list[Found]:
        """Return the earlier results of a conversation in a window."""
        return [one for one in self._found if one.conversation == conversation and one.window == window]

    def add(self, found: Sequence[Found]) -> None:
        """Append results to the file."""
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(one)) + "\n" for one in found)


def _read(line: str) -> Found:
    value = json.loads(line)
    return Found(**value | {name: tuple(value[name]) for name in ("whole", "by_sentence")})


async def evidence(values: Iterable[dict[str, Any]], windows: Sequence[int], kept: Results) -> list[Found]:
    """Return the results of all questions, measured on a server of their own."""
    found: list[Found] = []
    async with AsyncExitStack() as exits:
        stack: Stack | None = None
        for value in values:
            missing = [window for window in windows if not kept.of(value["id"], window)]
            for window in windows:
                found += kept.of(value["id"], window)
            if not missing:
                continue
            one = conversation(value, 1)
            if stack is None:
                stack = await exits.enter_async_context(a_stack())
            for window in missing:
                new = await measure(stack, one, window)
                kept.add(new)
                found += new
                print(f"{one.id} in {window:,}: {len(one.questions)} questions", file=sys.stderr, flush=True)
    return sorted(found, key=lambda one: windows.index(one.window))


def sessions(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the sessions with compactions as neutral ones."""
    if given.claude_code:
        for name, text in claude_code.logs(given.claude_code).items():
            value = claude_code.neutral(name, text)
            if value is not None:
                yield value
    for file in sorted(given.data.glob("*.jsonl")) if given.data else ():
        yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


def real_compactions(values: Iterable[dict[str, Any]]) -> str:
    """Return the tables of real compactions."""
    found: list[compactions.Row] = []
    for value in values:
        found += compactions.rows(value)
        print(f"{value['id']}: {len(found)} compactions so far", file=sys.stderr, flush=True)
    others = [row for row in found if not row.developed]
    developed = [row for row in found if row.developed]
    parts = [f"### {len(others)} real compactions\n\n{compactions.sums(others)}\n\n{compactions.table(others)}"]
    if developed:
        parts.append(f"### {len(developed)} that the summaries were developed on\n\n{compactions.sums(developed)}")
    return "\n\n".join(parts)


def report(name: str, found: Sequence[Found], groups: Sequence[Group]) -> str:
    """Return the tables of one data set."""
    return "\n\n".join([f"### {name}", *_tables(found, groups)]) + "\n"


def _tables(found: Sequence[Found], groups: Sequence[Group]) -> Iterator[str]:
    yield tables.by_window(found, groups)
    yield tables.lost_to(found)
    for window in dict.fromkeys(one.window for one in found):
        yield tables.by_kind(found, window)
    for window in dict.fromkeys(one.window for one in found):
        yield tables.by_conversation(found, window)


if __name__ == "__main__":
    main()

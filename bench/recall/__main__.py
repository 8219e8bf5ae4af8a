"""`make bench NAME=recall RECORDINGS=folder`: whether a question's own words find the turns that answer it.

For every dialogue with questions in the neutral JSONL files of the folder: the number of questions that have all of
their evidence among the first ten results, against a public BM25 library over the same turns; the number that have it
there and without a limit, by category and number of turns; the same over HTTP; and the number that have all of it in a
context of a fixed window, with and without one recall.
"""

import argparse
import asyncio
from pathlib import Path

from bench.recall import contexts, kinds, ranking, served
from bench.retention.__main__ import SAMPLES, read


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SAMPLES, help="a folder of neutral JSONL recordings")
    parser.add_argument("--url", help="a running server, by default the one that a replay would use")
    given = parser.parse_args()
    for file in sorted(given.data.glob("*.jsonl")):
        dialogues = read(file, ranking.load)
        if not dialogues:
            continue
        print(f"### {file.stem}: {len(dialogues)} dialogues\n\n{ranking.table(dialogues)}\n", flush=True)
        print(kinds.table(dialogues) + "\n", flush=True)
        print(asyncio.run(served.table(dialogues, given.url)) + "\n", flush=True)
        print(contexts.table(dialogues), flush=True)


if __name__ == "__main__":
    main()

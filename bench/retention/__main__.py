"""`make bench NAME=retention RECORDINGS=folder`: later needs kept by a summary made without a model.

At each point where a recorded agent compacted, everything before it is summarized into a fixed number of tokens. A file
counts as named if its full path is in the text. A value needed later is one in the arguments of a call after the point
that had been seen before it, and counts for every call that uses it; "distinct" counts each value of a point once; "not
shown again" are the uses before which no message after the point had shown the value. "Merged" is made of the summaries
of neighbouring parts. The recorded agent's own summaries are measured likewise. For dialogues: the share of questions
all of whose evidence is in the context.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.digest import digest_of
from app.core.memory.digest.record import unite
from app.core.memory.extractive import write_summary
from app.core.tokens.counter import TextKind
from bench.cost.sessions import COUNTER, session
from bench.quality.recorded import openai_message
from bench.quality.texts import transcript
from bench.retention import dialogue, truth
from bench.retention.points import Point, load
from bench.retention.statements import StatementCounts
from palimpsest_tools.recordings.recording import MalformedRecording

T = TypeVar("T")
SAMPLES = Path(__file__).parents[2] / "tests" / "samples"
SIZES = (1500, 2800, 5000)
PARTS = 4


def count(text: str) -> int:
    """Return the tokens of a text as a message of the context holds it."""
    return COUNTER.estimator.count(text, TextKind.PROSE)


def summarize(point: Point, tokens: int) -> str:
    """Return the summary of a point, prose and lists together, of at most `tokens`."""
    text = write_summary(point.events, (), "", digest_of(point.events), tokens, COUNTER)
    if count(text) > tokens:
        raise AssertionError(f"{count(text)} tokens where {tokens} were allowed")
    return text


def merge(point: Point, tokens: int, *, in_pairs: bool = False) -> str:
    """Return a summary merged from those of PARTS neighbouring parts as a worker does, without reading events again.

    With `in_pairs`, each two neighbours are merged, then the results, until one is left.
    """
    parts = list(parts_of(point.events))
    digests = [digest_of(part) for part in parts]
    texts = [write_summary(part, (), "", one, tokens, COUNTER) for part, one in zip(parts, digests, strict=True)]
    width = 2 if in_pairs else PARTS
    while len(texts) > 1:
        starts = range(0, len(texts), width)
        digests = [unite(digests[at : at + width]) for at in starts]
        joined = ["\n\n".join(texts[at : at + width]) for at in starts]
        texts = [write_summary((), (), text, one, tokens, COUNTER) for text, one in zip(joined, digests, strict=True)]
    return texts[0]


def parts_of(events: Sequence[Event]) -> Iterator[tuple[Event, ...]]:
    """Yield PARTS neighbouring parts of about the same number of events; none ends between a call and its result."""
    size, begin, waiting = -(-len(events) // PARTS), 0, set[int]()
    for end, event in enumerate(events, start=1):
        waiting = waiting | {event.seq} if event.type is EventType.TOOL_CALL else waiting - {event.call_seq}
        if (end - begin >= size and not waiting) or end == len(events):
            yield tuple(events[begin:end])
            begin = end


def write_texts(folder: Path, file: Path) -> None:
    """Write the summary of each whole session of a file, and its messages, for people to compare."""
    folder.mkdir(parents=True, exist_ok=True)
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            value = json.loads(line)
            events = session(value, number).events
            text = write_summary(events, (), "", digest_of(events), SIZES[1], COUNTER)
            (folder / f"{value['id']}-summary.txt").write_text(f"{text}\n", encoding="utf-8")
            log = transcript(map(openai_message, value["messages"]))
            (folder / f"{value['id']}-log.txt").write_text(f"{log}\n", encoding="utf-8")


def row(label: str, points: Sequence[Point], texts: Iterable[str]) -> str:
    """Return one line of the table."""
    pairs = list(zip(points, texts, strict=True))
    files = [path in text for point, text in pairs for path in point.modified]
    names = [path.rsplit("/", 1)[-1] in text for point, text in pairs for path in point.modified]
    uses = [need.value in text for point, text in pairs for need in point.needs]
    distinct = [value in text for point, text in pairs for value in {need.value for need in point.needs}]
    unseen = [need.value in text for point, text in pairs for need in point.needs if not need.again]
    size = sum(count(text) for _, text in pairs) / max(1, len(pairs))
    shares = " | ".join(share(found) for found in (files, names, uses, distinct, unseen))
    return f"| {label} | {size:,.0f} | {shares} |"


def share(found: Sequence[bool]) -> str:
    """Return a share in the form `83.6% (of 2074)`."""
    return f"{sum(found) / len(found):.1%} (of {len(found)})" if found else "none"


def table(points: Sequence[Point]) -> str:
    """Return Markdown: our summaries by size, and the recorded agents' own."""
    lines = [
        "| summary | tokens on average | modified files, full path | by name | values needed later | distinct"
        " | not shown again |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [row(f"extractive, at most {size:,}", points, [summarize(p, size) for p in points]) for size in SIZES]
    lines += [row(f"{PARTS} merged, at most {size:,}", points, [merge(p, size) for p in points]) for size in SIZES]
    lines.append(row("the agent's own", points, [point.summary for point in points]))
    return "\n".join(lines)


def statements(points: Sequence[Point]) -> str:
    """Return Markdown: the statements that summaries keep, their form, and the truth of the states they give."""
    lines = [
        "| summary | user messages, whole | newest three texts, sentences | their content words"
        " | short answers shown, with their question | junk among names | sentences repeated | cut in a word"
        " | users' messages out of order |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    states = ["| summary | stated | true | false | not known |", "|---|---|---|---|---|"]
    for label, make in _makers():
        told, counts = StatementCounts(), Counter[tuple[str, str]]()
        for point in points:
            text = make(point)
            told.add(text, point.events)
            truth.tally(truth.verdicts(text, point.events), counts)
        shares = " | ".join(map(share, (told.messages, told.newest)))
        words = f"{sum(told.words) / max(1, len(told.words)):.1%}"
        rest = f"{share(told.answers)} | {share(told.junk)} | {told.repeated} | {told.cut} | {told.misplaced}"
        lines.append(f"| {label} | {shares} | {words} | {rest} |")
        for kind in dict.fromkeys(kind for kind, _ in sorted(counts)):
            cells = " | ".join(str(counts[kind, verdict]) for verdict in (truth.TRUE, truth.FALSE, truth.UNKNOWN))
            states.append(f"| {label} | {kind} | {cells} |")
    return "\n".join([*lines, "", *states])


def _makers() -> Iterator[tuple[str, Callable[[Point], str]]]:
    for size in SIZES:
        yield f"extractive, at most {size:,}", partial(summarize, tokens=size)
    yield f"{PARTS} merged, at most {SIZES[1]:,}", partial(merge, tokens=SIZES[1])
    yield f"{PARTS} merged in pairs, at most {SIZES[1]:,}", partial(merge, tokens=SIZES[1], in_pairs=True)
    yield "the agent's own", lambda point: point.summary


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SAMPLES, help="a folder of neutral JSONL recordings")
    parser.add_argument("--texts", type=Path, help="write only the summaries of whole sessions, to this folder")
    given = parser.parse_args()
    files = sorted(given.data.glob("*.jsonl"))
    if given.texts:
        for file in files:
            write_texts(given.texts, file)
        return
    points = [point for file in files for point in read(file, load)]
    if points:
        halves = "".join(
            f"\n\n{name} sessions, of {len(half)} compactions\n\n{statements(half)}"
            for name, half in _halves(points)
            if half
        )
        print(f"### {len(points)} compactions\n\n{table(points)}\n\n{statements(points)}{halves}")
    else:
        print("No compactions in these recordings.")
    for file in files:
        dialogues = read(file, dialogue.load)
        if dialogues:
            print(f"\n### {file.stem}: {len(dialogues)} dialogues\n\n{dialogue.table(dialogues)}", flush=True)


def _halves(points: Sequence[Point]) -> Iterator[tuple[str, Sequence[Point]]]:
    """Yield the points of every other session, then the others', to show which figures depend on a few sessions."""
    order = list(dict.fromkeys(point.session for point in points))
    for name, parity in (("Odd", 0), ("Even", 1)):
        yield name, [point for point in points if order.index(point.session) % 2 == parity]


def read(file: Path, loader: Callable[[Path], Iterable[T]]) -> list[T]:
    """Return the content of a file; if it is no neutral recording, print that and return nothing."""
    try:
        return list(loader(file))
    except (MalformedRecording, ValueError, KeyError) as error:
        print(f"{file.name} is no neutral recording: {error}")
        return []


if __name__ == "__main__":
    main()

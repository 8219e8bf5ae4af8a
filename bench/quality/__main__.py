"""`make bench NAME=quality RECORDINGS=folder`: the share of later needs that a context shows, over HTTP.

At each point where a recorded agent compacted (in a file where none ever did: at half and at four fifths of each
session), a context is requested and its `request` searched. Only appends and contexts enqueue the worker's jobs, as in
production; it writes without a model. Sessions have the policy `{"window_tokens": window}`, so that the worker uses
that window, and every context is requested with the same `max_tokens` and with the recorded time as its `now`.

* first asked: all messages in bulk, the worker done, then the first context.
* the window in the call alone: as before but without that policy, so that the worker uses the model's own window until
  the first context; then requested again when the worker is done.
* lived through: appended as the agent did, a context before each of its calls; the worker finishes its jobs before the
  agent's call returns (`--wait-after 0`: without waiting).
* after a restart: at the same point again, by a restarted API.
* a smaller view: as first asked with twice the window; then a second view.
* other policies: from the start, and the same view changed to them after a context under `default`, measured
  immediately and when the worker is done.

For comparison, with the same target by the same estimator: the newest messages in whole rounds, and the recorded
agent's own summary with the newest messages. A session that lacks its system prompt is given a short one.

values: the share, present in the text, of values in the arguments of later calls that had been seen before the point,
counting every use; distinct: each value of a point once; not shown again: only uses before which no message after the
point had shown the value. edits: the share, present word for word apart from line numbers, of the texts that edits of
the next 120 messages replace and that were seen before the point. constraints: the system prompt, and sentences of
users that say never, always or must. dropped: events that the response reports as dropped; of them covered: those in
the span of a live summary; of all covered: the share of the log in such spans; least used: the smallest share of the
target in use where anything was dropped.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from app.core.policy.policy import DOCUMENTS
from bench.quality import baselines, tables
from bench.quality.kept import Kept
from bench.quality.picture import svg
from bench.quality.recorded import Recorded, load
from bench.quality.scenarios import Lane, Record
from bench.quality.servers import a_stack
from palimpsest_tools.recordings.recording import MalformedRecording

SAMPLES: Final = Path(__file__).parents[2] / "tests" / "samples"
WINDOWS: Final = (8_000, 12_000, 16_000, 24_000, 32_000, 48_000, 64_000)
OTHERS: Final = (12_000, 24_000, 48_000)
POLICIES: Final = tuple(name for name in DOCUMENTS if name != "default")
SCENARIOS: Final = ("first", "lived", "restart", "smaller", "untold", "policies")

Unit: TypeAlias = Callable[[Lane], AsyncIterator[Record]]
"""A measurement that runs on one server."""


def units(recordings: Sequence[Recorded], given: argparse.Namespace) -> Iterator[Unit]:
    """Yield all measurements, the longest first."""
    if {"lived", "restart"} & set(given.scenarios):
        for window in given.lived_windows:
            for part in range(given.lanes):
                yield _lived_through(recordings[part :: given.lanes], window, "restart" in given.scenarios)
    for recording in recordings:
        for number in range(len(recording.moments)):
            if "policies" in given.scenarios:
                for window in given.policy_windows:
                    for preset in given.policies:
                        yield _presets(recording, number, window, preset)
            if "untold" in given.scenarios:
                for window in given.windows:
                    yield _window_in_call(recording, number, window)
            yield from _first_contexts(recording, number, given)


def _first_contexts(recording: Recorded, number: int, given: argparse.Namespace) -> Iterator[Unit]:
    """Yield the first contexts of a point; smaller views are measured with the first context of twice their window."""
    windows = set(given.windows) if "first" in given.scenarios else set()
    smaller = set(given.windows) if "smaller" in given.scenarios else set()
    for window in sorted(windows | {2 * one for one in smaller}):
        side = window // 2 if window // 2 in smaller else None
        yield _first_asked(recording, number, window, side, window in windows)


def _lived_through(recordings: Sequence[Recorded], window: int, restart: bool) -> Unit:
    return lambda lane: lane.lived_through(recordings, window, restart=restart)


def _first_asked(recording: Recorded, number: int, window: int, side: int | None, keep_first: bool) -> Unit:
    return lambda lane: lane.first_asked(recording, recording.moments[number], window, side, keep_first=keep_first)


def _window_in_call(recording: Recorded, number: int, window: int) -> Unit:
    return lambda lane: lane.window_in_call(recording, recording.moments[number], window)


def _presets(recording: Recorded, number: int, window: int, preset: str) -> Unit:
    async def both(lane: Lane) -> AsyncIterator[Record]:
        async for record in lane.preset_from_start(recording, recording.moments[number], window, preset):
            yield record
        async for record in lane.preset_changed(recording, recording.moments[number], window, preset):
            yield record

    return both


async def measure(
    recordings: Sequence[Recorded], given: argparse.Namespace, keep: Callable[[Sequence[Record]], None]
) -> list[Record]:
    """Run all requested measurements, on one server a lane; `keep` is called with the records of each as it is done."""
    todo = deque(units(recordings, given))
    found: list[Record] = []
    begun, every = time.monotonic(), len(todo)

    async def work(lane: Lane) -> None:
        while todo:
            records = [record async for record in todo.popleft()(lane)]
            keep(records)
            found.extend(records)
            passed = time.monotonic() - begun
            print(f"{every - len(todo)} of {every} begun, {passed:.0f} s", file=sys.stderr, flush=True)

    async with AsyncExitStack() as servers:
        # Started one after the other: two migrations in one process would interfere.
        lanes = [
            Lane(await servers.enter_async_context(a_stack()), given.wait_after, given.texts)
            for _ in range(given.lanes)
        ]
        async with asyncio.TaskGroup() as working:
            for lane in lanes:
                working.create_task(work(lane))
    return found


def baseline_records(recordings: Sequence[Recorded], windows: Sequence[int]) -> Iterator[Record]:
    """Yield the records of the same windows without a server."""
    for recording in recordings:
        for moment in recording.moments:
            for window in windows:
                at = moment.point.at
                yield Record(tables.NEWEST, window, recording.id, at, baselines.newest(recording, moment, window))
                own = baselines.own_summary(recording, moment, window)
                if own is not None:
                    yield Record(tables.OWN, window, recording.id, at, own)


def report(records: Sequence[Record]) -> str:
    """Return Markdown: values by window and by policy, then all figures of each scenario."""
    parts = ["Values needed later that are visible:", tables.comparison(records)]
    parts += ["Texts that later edits replace that are visible:", tables.comparison(records, tables.edits)]
    parts += ["The same under other policies:", tables.policies(records)]
    for name in tables.scenarios(records):
        parts += [f"**{name}**", tables.scenario_table(records, name)]
    return "\n\n".join(parts)


def picture(records: Sequence[Record], title: str) -> str:
    """Draw an SVG of the share of values visible against the window, a line for each of the common scenarios."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for name in tables.DRAWN:
        points = [(window, tables.values(records, name, window)) for window in tables.windows(records)]
        found = [(window, share) for window, share in points if share is not None]
        lines |= {name: found} if found else {}
    return svg(title, lines)


def read_records(file: Path) -> Iterator[tuple[str, list[Record]]]:
    """Yield the records of one or several earlier runs by recordings file, the latest of each kind."""
    found: dict[str, dict[tuple[str, int, str, int], Record]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        value = json.loads(line)
        name, kept = value.pop("file"), value.pop("kept")
        shares: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in kept.items()}
        record = Record(kept=Kept(**shares), **value)
        found.setdefault(name, {})[record.scenario, record.window, record.recording, record.at] = record
    yield from ((name, list(records.values())) for name, records in found.items())


def measure_files(given: argparse.Namespace) -> Iterator[tuple[str, list[Record]]]:
    """Measure; yield the records of each file of recordings, which are also written to `--json`."""
    for file in sorted(given.data.glob("*.jsonl")):
        if given.files and file.stem not in given.files:
            continue
        try:
            recordings = load(file)[: given.sessions]
        except (MalformedRecording, ValueError, KeyError) as error:
            print(f"{file.name} is no neutral recording: {error}")
            continue
        if not recordings:
            continue
        keep = partial(_write, given.json, file.stem)
        records = asyncio.run(measure(recordings, given, keep))
        others = list(baseline_records(recordings, tables.windows(records)))
        keep(others)
        yield file.stem, records + others


def _write(file: Path | None, name: str, records: Sequence[Record]) -> None:
    if file is not None:
        with file.open("a", encoding="utf-8") as sink:
            sink.writelines(json.dumps({"file": name, **asdict(record)}) + "\n" for record in records)


def main() -> None:
    """Run the benchmark, print its tables, and write the requested files."""
    given = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # handle like Ctrl-C, so that the servers are stopped
    for name, records in measure_files(given) if given.again is None else read_records(given.again):
        points = {(record.recording, record.at) for record in records}
        sessions = {recording for recording, _ in points}
        print(f"\n### {name}: {len(sessions)} sessions, {len(points)} points\n\n{report(records)}", flush=True)
        if given.picture:
            title = f"Values that calls needed later and that the context still shows, {name}"
            given.picture.write_text(picture(records, title))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.quality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SAMPLES, help="a folder of neutral JSONL recordings")
    parser.add_argument("--files", nargs="+", default=["coding_agent"], help="names of its files")
    parser.add_argument("--sessions", type=int, help="number of sessions of each file")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS, help="windows of the other scenarios")
    parser.add_argument("--lived-windows", type=int, nargs="+", default=WINDOWS, help="windows of the scenario lived")
    parser.add_argument("--policy-windows", type=int, nargs="+", default=OTHERS)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument(
        "--wait-after", type=int, default=1, help="contexts after which the worker is waited for; 0 means never"
    )
    parser.add_argument("--lanes", type=int, default=2, help="number of concurrent servers")
    parser.add_argument("--json", type=Path, help="a JSONL file to which every measured context is appended")
    parser.add_argument("--texts", type=Path, help="a folder to which every measured context is written for readers")
    parser.add_argument("--again", type=Path, help="print the tables of such a file without measuring")
    parser.add_argument("--picture", type=Path, help="a file for an SVG of the last recordings file")
    return parser.parse_args()


if __name__ == "__main__":
    main()

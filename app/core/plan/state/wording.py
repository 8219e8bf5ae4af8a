"""Words in which a context speaks of what it leaves out, by render version, and the limits of long texts."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from app.core.log.event import Event
from app.core.log.events import Json
from app.core.memory.cover import Clipped, Summary
from app.core.memory.digest.sentences import shorten
from app.core.plan.state.frontier import LATER, NEWER, OLDER, SINGLE, SPARSE, Fold, LeftOut
from app.core.plan.state.union import TEXTS_CACHED, unite

TRUNCATED: Final = "...[truncated]"
DATA_FIELDS: Final = frozenset({"base64", "b64", "b64_json", "data", "file_data", "image_data"})
"""Names of fields whose text counts as base64 if it looks like base64."""

_DATA: Final = re.compile(r"[A-Za-z0-9+/_\s-]+={0,2}\s{0,2}")
_DATA_ADDRESS: Final = re.compile(r"data:[\w.+/-]{0,100}(?:;[\w=-]{1,60})*;base64,")


class Limits(NamedTuple):
    """The maximums that stay: characters of a text, items of a list, keys of an object, characters of uncut base64."""

    chars: int
    items: int
    keys: int
    data: int


def limited(value: Json, limits: Limits, name: str = "") -> Json:
    """Return the value of field `name`, cut to the limits. A text that begins with `ref:` is kept whole."""
    if isinstance(value, str):
        return _text(value, limits, name)
    if isinstance(value, Mapping):
        kept = list(value.items())[: limits.keys]
        cut = {key: limited(inner, limits, key) for key, inner in kept}
        return {**cut, "...": f"({len(value) - limits.keys} more)"} if len(value) > limits.keys else cut
    if isinstance(value, list):
        items = [limited(inner, limits, name) for inner in value[: limits.items]]
        return [*items, f"... ({len(value) - limits.items} more)"] if len(value) > limits.items else items
    return value


def _text(value: str, limits: Limits, name: str) -> str:
    if value.startswith("ref:"):
        return value
    if len(value) > min(limits.chars, limits.data) and _is_data(value, name):
        # A part of a base64 text is useless.
        return value if len(value) <= limits.data else f"[base64, {len(value)} characters]{TRUNCATED}"
    return value if len(value) <= limits.chars else value[: limits.chars] + TRUNCATED


def _is_data(value: str, name: str) -> bool:
    if _DATA_ADDRESS.match(value):
        return True
    return name in DATA_FIELDS and _DATA.fullmatch(value) is not None


RENDER_VERSION: Final = 4

PENDING: Final = "[No result yet: this tool call is still running.]"
TOOLS_NAMED_MAX: Final = 6
OUTCOME_CHARS_MAX: Final = 120
ARGUMENT_CHARS_MAX: Final = 300
ARGUMENT_CHARS_KEPT: Final = 80
UNKNOWN_BEFORE: Final = "1970-01-02"
"""Times before this count as unknown."""
_REST: Final = " Of that part, only messages that are still needed follow."
_AGE: Final = " Passed checks, failures, open tasks and plans are as of the end of each summary"
_AGE_BEFORE: Final = " Failures, open tasks and plans are as of the end of each summary"
_NEEDED: Final = " Messages of that part that are still needed follow"
_FOLLOWS: Final = {
    SINGLE: " Single messages of that part follow up to a line that ends them; others between them are left out.{age}.",
    LATER: "{age}; the messages below are newer.",
    "": f"{_REST}{_AGE_BEFORE}; messages after it are newer.",
    OLDER: f"{_NEEDED}, up to a line that ends them.{{age}}.",
    SPARSE: f"{_NEEDED}, with gaps between them, up to a line that ends them.{{age}}.",
    NEWER: "{age}; the messages below are newer.",
}
"""The end of the header of dated summaries, by the messages that follow them."""
_STATES: Final = re.compile(
    r"^(?:### (?:In Progress|Not Started|Blocked)|## Next|<(?:tasks|errors)>|\[(?:error|ok)\] )|Not resolved when", re.M
)
"""Headings and lines on checks, failures, open tasks and plans."""
WITHOUT_FOLD: Final = Fold("", 0, 0, 0, 0, 0, dated=True)
RESUMED: Final = "[End of the kept messages. What follows is newer than the summaries.]"
_NEVER_LOST: Final = re.compile(r"^<(constraints|modified-files)>\n.*?^</\1>$", re.M | re.S)
_SECTION: Final = re.compile(r"^<([a-z-]+)>$", re.M)


def stub(event: Event, keeps: Sequence[str], tokens: int, *, recall: bool = True, outcome: str = "") -> str:
    """Return the line in place of a tool result: its tool, how it began, and its tokens.

    `keeps` are paths and identifiers of the result that are visible nowhere else, `outcome` a sentence on its checks.
    """
    state = "error result" if event.is_error else "result"
    begins = f' It begins: "{event.gist}".' if event.gist else ""
    names = f" In it: {' '.join(keeps)}." if keeps else ""
    return (
        f"[{state} of {event.tool or 'a tool'} left out of this context, about {tokens} tokens.{begins}"
        f"{f' {outcome}' if outcome else ''}{names}"
        f"{f' Recall it with seq {event.seq}.' if recall else ''}]"
    )


def outcome(report: str, *, passed: bool) -> str:
    """Return the sentence of a stub on the outcome of the checks of which it was the result."""
    told = f": {shorten(report.rstrip('.'), OUTCOME_CHARS_MAX)}" if report else ""
    return f"{'Its checks passed' if passed else 'A check failed'}{told}."


def shortened_arguments(arguments: Mapping[str, Json], seq: int, *, recall: bool = True) -> dict[str, Json]:
    """Return the arguments with each long text shortened to its beginning."""
    return {name: _shortened_value(value, seq, recall=recall) for name, value in arguments.items()}


def limited_arguments(
    arguments: Mapping[str, Json], limits: Limits, seq: int, *, recall: bool = True
) -> dict[str, Json]:
    """Return the arguments cut to `limits`, with the field `truncated` added if anything was cut."""
    kept: dict[str, Json] = limited(arguments, limits)
    if kept == arguments:
        return kept
    return {**kept, "truncated": True, **({"recall_seq": seq} if recall else {})}


def _shortened_value(value: Json, seq: int, *, recall: bool) -> Json:
    if isinstance(value, list):
        return [_shortened_value(inner, seq, recall=recall) for inner in value]
    if isinstance(value, str) and len(value) > ARGUMENT_CHARS_MAX:
        cut = len(value) - ARGUMENT_CHARS_KEPT
        hint = f"; recall them with seq {seq}" if recall else ""
        return f"{value[:ARGUMENT_CHARS_KEPT]}[... {cut} characters left out{hint}]"
    if isinstance(value, Mapping):
        return {name: _shortened_value(inner, seq, recall=recall) for name, inner in value.items()}
    return value


def shortened(text: str, chars: int, seq: int, *, recall: bool = True) -> str:
    """Return the first and last `chars` characters of a long text, with a line about the missing part between them."""
    cut = len(text) - 2 * chars
    hint = f"; recall them with seq {seq}" if recall else ""
    return f"{text[:chars]}\n[... {cut} characters left out{hint} ...]\n{text[-chars:]}"


def join_summaries(
    shown: Sequence[Summary], omitted: int = 0, *, recall: bool = True, last: Fold = WITHOUT_FOLD
) -> str:
    """Join summaries into one text under a line on the part that they replace; `omitted` older ones are not shown.

    `last` is the fold of the last one; it says how the line and the headings are worded.
    """
    is_new = last.follows in (SINGLE, LATER)
    has_states = any(is_new or found[0] != "[ok] " for one in shown for found in _STATES.finditer(one.text))
    rest = _FOLLOWS[last.follows] if last.dated else _REST
    if last.precise and not has_states:
        rest = rest.replace("{age}; the messages", " The messages").replace("{age}.", "")
    rest = rest.replace("{age}", _AGE if is_new else _AGE_BEFORE)
    gap = f"[{omitted} earlier summar{'ies' if omitted != 1 else 'y'} left out.]" if omitted else ""
    if not shown:
        return gap
    hint = "; what was said and done there can be recalled" if recall else ""
    if len(shown) == 1:
        about = f"this summary stands for {_span(shown[0]) or 'its earlier part'}"
        head = f"[The conversation was compacted: {about}{hint}.{rest}]"
        return "\n\n".join(filter(None, (head, gap, shown[0].text)))
    parts = unite([one.text for one in shown])
    about = "these summaries stand for its earlier part, oldest first"
    lines = [f"[The conversation was compacted: {about}{hint}.{rest}]", gap]
    before = 0
    for one, words in zip(shown, parts.words, strict=True):
        if words:
            span = _span(one, before)
            lines += [f"[{span[0].upper()}{span[1:]}]\n{words}" if span else words]
        before = one.last_turn if last.precise else 0
    return "\n\n".join(filter(None, (*lines, parts.sections)))


def _span(summary: Summary, before: int = 0) -> str:
    """Return the turns that a summary covers, and their times; empty if neither is known.

    The turn `before`, in which the previous summary ended, is marked.
    """
    first, last = max(1, summary.first_turn), summary.last_turn
    begun = f"{first} (continued)" if first == before else str(first)
    turns = f"turn{f's {begun} to {last}' if last > first else f' {begun}'}" if last else ""
    starts, ends = (
        at[:16].replace("T", " ") if at > UNKNOWN_BEFORE else "" for at in (summary.starts_at, summary.ends_at)
    )
    if starts[:10] == ends[:10]:
        ends = ends[11:] if ends != starts else ""
    times = " to ".join(filter(None, (starts, ends)))
    return ", ".join(filter(None, (turns, f"{times} UTC" if times else "")))


def summary(summary: Summary, *, recall: bool = True) -> str:
    """Return a summary's text, headed by a line on the events that it replaces, as render versions before 4 show it."""
    hint = ", any of which can be recalled by its seq" if recall else ""
    return (
        f"[The conversation was compacted: this summary stands for events {summary.from_seq} to"
        f" {summary.to_seq}{hint}.]\n\n{summary.text}"
    )


def abridge_summary(text: str, chars: int, *, ordered: bool) -> str:
    """Return the first `chars` characters of a summary, up to the end of a word, and a line on the missing ones.

    If `ordered`, the sections that must not be lost come first. A section that is cut open is closed.
    """
    if ordered:
        text = _in_order(text)
    kept = text[:chars]
    if len(text) > chars and not text[chars].isspace():
        kept = kept[: max(kept.rfind(" "), kept.rfind("\n"), 0)]
    kept = kept.rstrip()
    opened = [tag for tag in _SECTION.findall(kept) if f"</{tag}>" not in kept[kept.rfind(f"<{tag}>") :]]
    closing = "".join(f"\n</{tag}>" for tag in reversed(opened))
    return f"{kept}{closing}\n[... {len(text) - len(kept)} characters of this summary left out]"


@lru_cache(maxsize=TEXTS_CACHED)
def _in_order(text: str) -> str:
    """Return a summary with the sections that must not be lost before its other text."""
    return "".join((*(f"{found[0]}\n" for found in _NEVER_LOST.finditer(text)), _NEVER_LOST.sub("", text)))


def omitted_line(count: int, *, recall: bool = True) -> str:
    """Return the line in place of `count` omitted summaries, where the others are messages of their own."""
    hint = "; their events can be recalled by seq" if recall else ""
    return f"[{count} earlier summar{'ies' if count != 1 else 'y'} left out{hint}.]"


def archive(shown: Clipped, *, recall: bool = True) -> str:
    """Return summaries as numbered batches; the clipped ones in the middle are replaced by a line."""
    every = (*shown.first, *shown.omitted, *shown.last)
    cycles = max(one.depth for one in every) + 1
    lines = [
        f"[Context Summary — {sum(one.events for one in every)} messages compressed across {cycles} compaction"
        f" cycle{'s' if cycles != 1 else ''}]"
    ]
    numbers = {one.id: number for number, one in enumerate(every, start=1)}

    def batches(some: Sequence[Summary]) -> list[str]:
        heads = (f"[Batch {numbers[s.id]} — depth {s.depth}, {s.starts_at} to {s.ends_at}]" for s in some)
        return [f"{head}\n{s.text}" for head, s in zip(heads, some, strict=True)]

    if not shown.omitted:
        return "\n\n".join(lines + batches(every))
    hint = "; their events can be recalled by seq" if recall else ""
    gap = f"[... {len(shown.omitted)} earlier summaries omitted{hint} ...]"
    if shown.first:
        lines += ["## Earliest context", *batches(shown.first)]
    lines += [gap, "## Recent context", *batches(shown.last)] if shown.last else [gap]
    return "\n\n".join(lines)


def note(left_out: LeftOut, *, recall: bool = True) -> str:
    """Return the one line in place of all dropped events."""
    calls_named = ", ".join(f"{tool} x{count}" for tool, count in left_out.calls[:TOOLS_NAMED_MAX])
    more = " and other tools" if len(left_out.calls) > TOOLS_NAMED_MAX else ""
    calls = f" with tool calls ({calls_named}{more})" if calls_named else ""
    turns = f"{left_out.turns} earlier turn{'s' if left_out.turns != 1 else ''}, " if left_out.turns else ""
    hint = " Any of it can be recalled." if recall else ""
    return (
        f"[Left out of this context to fit the model's window: {turns}{left_out.events} messages{calls},"
        f" about {left_out.tokens} tokens.{noted_files(left_out)}{hint}]"
    )


def noted_files(left_out: LeftOut) -> str:
    """Return the note's sentence on modified files; empty without any."""
    return f" Files modified in it: {', '.join(path for _, path in left_out.files)}." if left_out.files else ""


def without_recall(text: str, seq: int) -> str:
    """Return a stub's text about event `seq` without its recall hint."""
    for ending, rest in (
        (f" Recall it with seq {seq}.]", "]"),
        (f" (recall it with seq {seq})", ""),
        (f',"recall_seq":{seq}}}', "}"),
    ):
        if text.endswith(ending):
            return text.removesuffix(ending) + rest
    return text

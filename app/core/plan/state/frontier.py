"""The state that reducers change, stored as an epoch; within one, bytes are stable.

It holds every decision of a reduction, so that rendering decides nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from app.core import dataclass, replace
from app.core.log.event import lazy
from app.core.log.events import Json


@dataclass(frozen=True, slots=True)
class Drop:
    """The events from_seq..to_seq, which are left out altogether; shown, they would take `tokens`."""

    from_seq: int
    to_seq: int
    tokens: int
    reducer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stub:
    """The shown form of event `seq`, which differs from the logged one.

    A non-empty `text` (the author's replacement, or a reducer's words) is shown instead of the content. Without it:

    * A tool call is shown with its long arguments cut to `chars` characters; with `limits` (items, keys, base64
      characters) each value is cut by the limit of its kind.
    * A tool result is shown as its first and last `chars` characters. If `chars` is 0, one line is shown instead, with
      the `outcome` of a test or build and the identifiers it `keeps`, and the event's body need not be read.

    `tokens` counts the shown form (0: nothing is shown), `saved` the tokens saved against the whole event. `recall`:
    the text includes the hint for recalling the event.
    """

    seq: int
    chars: int
    tokens: int
    saved: int
    reducer: str
    reason: str
    text: str = ""
    keeps: tuple[str, ...] = ()
    recall: bool = True
    limits: tuple[int, ...] = ()
    outcome: str = ""

    @property
    def disposition(self) -> str:
        """`replaced` if `text` or nothing is shown, else `stubbed`."""
        return "replaced" if self.text or not self.tokens else "stubbed"


OLDER, SPARSE, NEWER = "older", "sparse", "newer"
SINGLE, LATER = "single", "later"


@dataclass(frozen=True, slots=True)
class Fold:
    """The summary `id`, which replaces the events from_seq..to_seq; if not `shown`, one line reports it as left out.

    * `tokens` counts the summary as shown, `saved` the tokens saved against the events.
    * At most `chars` characters of it are shown (0: all); `ordered`: the sections that must not be lost come first.
    * `recall` is as in `Stub`.
    * `joined`: it is shown in one text with the others, else in a message of its own.
    * `dated`: it is shown under a line on the age of its states.

    Only on the last fold:

    * `follows`: LATER: only newer messages follow the summaries. SINGLE: kept messages of the folded part come first,
      up to a line that ends them. In epochs of earlier versions: NEWER is like LATER, OLDER and SPARSE are like SINGLE,
      and empty is like SINGLE without that line.
    * `precise`: the line on the age of states is there only if a summary has any, a heading marks a turn that continues
      from the previous summary, and more headings that are left empty are removed. False in epochs of earlier versions.
    * `settled`: checksums of the lines, in any of the summaries, that newer messages settled when they were folded, and
      that are left out.
    """

    id: str
    from_seq: int
    to_seq: int
    depth: int
    tokens: int
    saved: int
    shown: bool = True
    chars: int = 0
    recall: bool = True
    ordered: bool = False
    joined: bool = False
    dated: bool = False
    settled: tuple[int, ...] = ()
    follows: str = ""
    precise: bool = False


@dataclass(frozen=True, slots=True)
class Superseded:
    """The system prompt or tool list `seq`, which a newer one has replaced."""

    seq: int
    tokens: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The contents of all drops together, for the note in their place.

    `calls` are (tool, count) pairs. `files` are the newest files modified in the drops, as (seq, path) with the seq of
    the last event that modified each; the path is ERASED if that event was redacted.
    """

    turns: int = 0
    events: int = 0
    tokens: int = 0
    calls: tuple[tuple[str, int], ...] = ()
    files: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Frontier:
    """The events of a view that are not shown verbatim. Sequences are in seq order, and drops do not overlap.

    * `floor` is the last seq of the part of the log that is folded or dropped, `kept` the seqs up to it that are still
      visible: the kept events and those with seq > floor are all that is visible.
    * `system_seq` is the newest system prompt, `system_before` the prompts that take effect together with it.
    * `folds` are the summaries that replace the log from seq 1, `summary_tokens` their tokens as shown.
    * `adopted` are late results that are shown directly after their calls.
    * `began` is the head when the view was last read from scratch: answers up to it were to no call of the view.
    * `decisions` counts the session's visibility decisions that were applied when the state last changed.
    * `earned` is the saving of evictions against sending everything, less their price, in input tokens, up to the call
      at seq `earned_to`, where the state last changed.
    """

    floor: int = 0
    kept: tuple[int, ...] = ()
    drops: tuple[Drop, ...] = ()
    stubs: tuple[Stub, ...] = ()
    adopted: tuple[int, ...] = ()
    system_seq: int = 0
    tools_seq: int = 0
    superseded: tuple[Superseded, ...] = ()
    left_out: LeftOut = LeftOut()
    note: str = ""
    note_tokens: int = 0
    began: int = 0
    folds: tuple[Fold, ...] = ()
    summary_tokens: int = 0
    decisions: int = 0
    system_before: tuple[int, ...] = ()
    earned: int = 0
    earned_to: int = 0

    @property
    def system_seqs(self) -> tuple[int, ...]:
        """The system prompts that take effect, in order."""
        return (*self.system_before, self.system_seq) if self.system_seq else ()

    def without(self, seqs: Collection[int]) -> "Frontier":
        """Return the frontier without stubs and adoptions of these events, which are no longer shown."""
        return replace(
            self,
            stubs=tuple(stub for stub in self.stubs if stub.seq not in seqs),
            adopted=tuple(seq for seq in self.adopted if seq not in seqs),
        )

    @property
    def folded_to(self) -> int:
        """The last seq that a fold covers; 0 without folds."""
        return self.folds[-1].to_seq if self.folds else 0

    @property
    def older_to(self) -> int:
        """The last seq of the messages that a line ends after the summaries; 0 without such a line."""
        return self.folds[-1].to_seq if self.folds and self.folds[-1].follows in (OLDER, SPARSE, SINGLE) else 0

    @lazy
    def saved(self) -> int:
        """The tokens saved against showing all events."""
        return (
            sum(stub.saved for stub in self.stubs)
            + sum(drop.tokens for drop in self.drops)
            + sum(fold.saved for fold in self.folds)
            - self.note_tokens
        )


START = Frontier()


def merge_drops(drops: Iterable[Drop]) -> tuple[Drop, ...]:
    """Return drops in seq order, with adjacent ones of the same reducer and reason merged."""
    merged: list[Drop] = []
    for drop in sorted(drops, key=lambda d: d.from_seq):
        last = merged[-1] if merged else None
        if last and last.to_seq + 1 == drop.from_seq and (last.reducer, last.reason) == (drop.reducer, drop.reason):
            merged[-1] = Drop(last.from_seq, drop.to_seq, last.tokens + drop.tokens, last.reducer, last.reason)
        else:
            merged.append(drop)
    return tuple(merged)


def first_changed(before: Frontier, after: Frontier) -> int:
    """Return the first seq that is shown differently; 0 if all may be, because something ahead of the log changed."""
    front = ("folds", "note", "system_seq", "tools_seq", "adopted", "kept", "drops")
    if any(getattr(before, name) != getattr(after, name) for name in front):
        return 0
    same = next(
        (n for n, (a, b) in enumerate(zip(before.stubs, after.stubs, strict=False)) if a is not b and a != b), None
    )
    same = min(len(before.stubs), len(after.stubs)) if same is None else same
    return min((stub.seq for stub in set(after.stubs[same:]) ^ set(before.stubs[same:])), default=0)


def to_json(frontier: Frontier) -> dict[str, Json]:
    """Return the frontier as it is stored, without fields at their defaults."""
    stored = _row(frontier)
    stored["drops"] = [_row(drop) for drop in frontier.drops]
    stored["superseded"] = [_row(one) for one in frontier.superseded]
    stored["stubs"] = [_stub_row(stub) for stub in frontier.stubs]
    unmarked = {"joined": False, "dated": False, "settled": (), "follows": "", "precise": False}
    stored["folds"] = [_row(fold, chars=0, recall=True, ordered=False, **unmarked) for fold in frontier.folds]
    stored["left_out"] = _row(frontier.left_out, files=())
    return {name: stored[name] for name in stored if getattr(frontier, name) != getattr(START, name)}


def _stub_row(stub: Stub) -> dict[str, Json]:
    """Return the fields of a stub as `_row` does, without those at their defaults: a frontier may hold thousands."""
    row: dict[str, Json] = {name: getattr(stub, name) for name in _ALWAYS}
    if stub.text:
        row["text"] = stub.text
    if stub.keeps:
        row["keeps"] = stub.keeps
    if not stub.recall:
        row["recall"] = False
    if stub.limits:
        row["limits"] = stub.limits
    if stub.outcome:
        row["outcome"] = stub.outcome
    return row


_ALWAYS: Final = ("seq", "chars", "tokens", "saved", "reducer", "reason")
"""The fields of a stub without defaults."""


def _row(value: Drop | Superseded | LeftOut | Fold | Frontier, **defaults: Json) -> dict[str, Json]:
    """Return the fields of a value, without those at these defaults."""
    found = {name: getattr(value, name) for name in value.__dataclass_fields__}
    return {name: field for name, field in found.items() if name not in defaults or field != defaults[name]}


_Row = TypeVar("_Row")


def from_json(document: Mapping[str, Any]) -> Frontier:
    """Parse a stored frontier."""

    def rows(name: str, shape: type[_Row]) -> tuple[_Row, ...]:
        return tuple(shape(**row) for row in document.get(name, ()))

    def stub(row: Mapping[str, Any]) -> Stub:
        return Stub(**{**row, "keeps": tuple(row.get("keeps", ())), "limits": tuple(row.get("limits", ()))})

    left_out: Mapping[str, Any] = document.get("left_out", {})
    calls: Sequence[Sequence[Any]] = left_out.get("calls", ())
    files: Sequence[Sequence[Any]] = left_out.get("files", ())
    pairs = {"calls": tuple((c[0], c[1]) for c in calls), "files": tuple((f[0], f[1]) for f in files)}
    return Frontier(
        floor=document.get("floor", 0),
        kept=tuple(document.get("kept", ())),
        drops=rows("drops", Drop),
        stubs=tuple(map(stub, document.get("stubs", ()))),
        adopted=tuple(document.get("adopted", ())),
        system_seq=document.get("system_seq", 0),
        tools_seq=document.get("tools_seq", 0),
        superseded=rows("superseded", Superseded),
        left_out=LeftOut(**{**left_out, **pairs}) if left_out else LeftOut(),
        note=document.get("note", ""),
        note_tokens=document.get("note_tokens", 0),
        began=document.get("began", 0),
        folds=tuple(Fold(**{**row, "settled": tuple(row.get("settled", ()))}) for row in document.get("folds", ())),
        summary_tokens=document.get("summary_tokens", 0),
        decisions=document.get("decisions", 0),
        system_before=tuple(document.get("system_before", ())),
        earned=document.get("earned", 0),
        earned_to=document.get("earned_to", 0),
    )

"""The state the reducers carry. Stored as an epoch; within one, bytes are stable.

Everything a decision determined when it was taken is kept here, so that rendering decides nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from app.core.log.events import Json


@dataclass(frozen=True, slots=True)
class Drop:
    """Events from_seq..to_seq are left out altogether; `tokens` is what they would have taken."""

    from_seq: int
    to_seq: int
    tokens: int
    reducer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stub:
    """Event `seq` is not shown as it was logged.

    With `text`, that is what is shown (what its author gave, or what the decision made of it). Otherwise a tool call is
    shown with its long arguments cut to `chars` characters (with `limits`, of items, keys and base64: by the kind of
    field), a tool result as its first and last `chars` characters, or,
    when that is 0, as its stub with what it `keeps`. `tokens` is what that takes, `saved` how much less than the event
    itself. Where `chars` is 0, the event's body is not needed to show it; where `tokens` is 0, nothing of it is shown.
    `recall`: whether it tells how to get the event back.
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

    @property
    def disposition(self) -> str:
        """`replaced` by words of its own or by nothing, or `stubbed`."""
        return "replaced" if self.text or not self.tokens else "stubbed"


@dataclass(frozen=True, slots=True)
class Fold:
    """Summary `id` stands for the events from_seq..to_seq; `shown`: its text is, else a line that it was left out.

    `tokens` is what the summary takes, `saved` how much less than the events. `chars`: only so many characters of it
    are shown, what must not be lost before all else if `ordered`; 0: all of it. `recall` as of a stub.
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


@dataclass(frozen=True, slots=True)
class Superseded:
    """The system prompt or tool list `seq` has been replaced by a newer one."""

    seq: int
    tokens: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What all drops together contained, for the note that stands in their place.

    `files` are the newest that were modified in them, each with the seq of the event that last says so; where that was
    redacted, ERASED stands for the name.
    """

    turns: int = 0
    events: int = 0
    tokens: int = 0
    calls: tuple[tuple[str, int], ...] = ()
    files: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Frontier:
    """Which events are shown other than verbatim. Sequences are in seq order, drops disjoint.

    `floor` is the last dropped seq, `kept` the visible seqs up to it: reading seq > floor, and the kept ones, reads all
    that is visible. `system_seq` is the newest system prompt, `system_before` those that take effect together with it.
    `folds` are the summaries that stand for the log from seq 1 on, `summary_tokens` what is shown of them takes.
    `adopted` are late results that stand behind their calls. `began` is the head at which the view
    was first read, or read afresh: nothing up to there has been paid for by its calls. `decisions` is how many of the
    session's decisions about what it shows were taken in when the state last changed. `earned` is what evictions had
    saved against sending everything, less their price, in input tokens, when the state last changed, at `earned_to`.
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
        """The same with nothing said of how these events are shown, because they no longer are."""
        return replace(
            self,
            stubs=tuple(stub for stub in self.stubs if stub.seq not in seqs),
            adopted=tuple(seq for seq in self.adopted if seq not in seqs),
        )

    @property
    def folded_to(self) -> int:
        """The last seq that a summary stands for, 0 without one."""
        return self.folds[-1].to_seq if self.folds else 0

    @property
    def saved(self) -> int:
        """How much less what is shown takes than all of the events."""
        return (
            sum(stub.saved for stub in self.stubs)
            + sum(drop.tokens for drop in self.drops)
            + sum(fold.saved for fold in self.folds)
            - self.note_tokens
        )


START = Frontier()


def merge_drops(drops: Iterable[Drop]) -> tuple[Drop, ...]:
    """Drops in seq order, neighbours with the same reason as one."""
    merged: list[Drop] = []
    for drop in sorted(drops, key=lambda d: d.from_seq):
        last = merged[-1] if merged else None
        if last and last.to_seq + 1 == drop.from_seq and (last.reducer, last.reason) == (drop.reducer, drop.reason):
            merged[-1] = Drop(last.from_seq, drop.to_seq, last.tokens + drop.tokens, last.reducer, last.reason)
        else:
            merged.append(drop)
    return tuple(merged)


def first_changed(before: Frontier, after: Frontier) -> int:
    """The first seq that is shown otherwise than before; 0 when all may be, since something in front of it is."""
    front = ("folds", "note", "system_seq", "tools_seq", "adopted", "kept", "drops")
    if any(getattr(before, name) != getattr(after, name) for name in front):
        return 0
    return min((stub.seq for stub in set(after.stubs) ^ set(before.stubs)), default=0)


def to_json(frontier: Frontier) -> dict[str, Json]:
    """The frontier as it is stored: fields at their defaults left out."""
    stored = asdict(frontier)
    stored["stubs"] = [_without_defaults(stub, text="", keeps=(), recall=True, limits=()) for stub in stored["stubs"]]
    stored["folds"] = [_without_defaults(fold, chars=0, recall=True, ordered=False) for fold in stored["folds"]]
    stored["left_out"] = _without_defaults(stored["left_out"], files=())
    return {f.name: stored[f.name] for f in fields(frontier) if getattr(frontier, f.name) != getattr(START, f.name)}


def _without_defaults(row: Mapping[str, Json], **defaults: Json) -> dict[str, Json]:
    return {name: value for name, value in row.items() if name not in defaults or value != defaults[name]}


_Row = TypeVar("_Row")


def from_json(document: Mapping[str, Any]) -> Frontier:
    """The stored frontier back as a value."""

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
        folds=rows("folds", Fold),
        summary_tokens=document.get("summary_tokens", 0),
        decisions=document.get("decisions", 0),
        system_before=tuple(document.get("system_before", ())),
        earned=document.get("earned", 0),
        earned_to=document.get("earned_to", 0),
    )

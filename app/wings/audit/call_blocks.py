"""The blocks of a recorded call's request, and the reasons for which the rules of retention let an event stay whole."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from app.core.assembly.assemble import CallRecord
from app.core.log.event import Block, Event, Kind, lazy
from app.core.log.events import LAYERS, TOOL_USE, Draft, EventType
from app.core.plan.reducers.earnings import last_unit_seq
from app.core.plan.reducers.economics import EconomicReducer
from app.core.plan.reducers.retention import ARGUMENTS_TOKENS_MIN, candidates
from app.core.plan.state import wording
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.items import Item
from app.core.plan.state.stubs import STUB_TOKENS
from app.core.policy.groups import Retention
from app.core.record import NO_COUNT, CallManifest, ReplayedCall
from app.core.record.evictions import FORMAT, loss_reason
from app.core.render.formats.layout import TOOLS, kind_of
from app.core.tokens.budget import provider_tokens
from app.core.tokens.counter import REQUEST_TOKENS

Protection = Literal[
    "prefix",
    "pinned",
    "current_request",
    "open_call",
    "message",
    "never_evict",
    "shown_again",
    "newest",
    "below_minimum",
    "listing",
    "arguments_stay",
    "working_set",
    "unsent",
]


@dataclass(frozen=True)
class Protections:
    """The protections of a context's events under the rules of retention. `economic`: the reducer, if it applies them.

    An event without a protection may be evicted as soon as a reducer evicts by these rules.
    """

    context: Context
    state: Frontier
    retention: Retention
    economic: EconomicReducer | None = None

    @lazy
    def candidates(self) -> frozenset[int]:
        """The seqs that the rules allow to evict."""
        return frozenset(one.item.event.seq for one in candidates(self.context, self.retention))

    @lazy
    def _old(self) -> frozenset[int]:
        """The seqs that the rules would allow to evict if size and content did not matter."""
        tools = {name: replace(rule, min_tokens=0) for name, rule in self.retention.tools.items()}
        rules = replace(self.retention, min_tokens=0, dense=1.0, tools=tools)
        return frozenset(one.item.event.seq for one in candidates(replace(self.context), rules))

    @lazy
    def _working_set(self) -> Collection[int]:
        return frozenset() if self.economic is None else self.economic.working_set(self.context, self.state)

    def protection(self, item: Item) -> Protection | None:
        """Return the reason for which an item that is shown whole stays; None if it may be evicted."""
        event, context = item.event, self.context
        if event.pinned:
            return "pinned"
        if event.seq in context.open_calls:
            return "open_call"
        if event.type is EventType.USER_MESSAGE and event.turn == context.turn:
            return "current_request"
        if event.type not in TOOL_USE:
            return "message"
        if event.seq in self.candidates:
            if event.seq in self._working_set:
                return "working_set"
            return "unsent" if self.economic is not None and event.seq >= last_unit_seq(context) else None
        return self._of_result(event) if event.type is EventType.TOOL_RESULT else self._of_call(item)

    def _of_result(self, event: Event) -> Protection:
        rule = self.retention.rule(event.tool or "")
        if rule is None:
            return "never_evict"
        if event.seq in self.context.shown_again:
            return "shown_again"
        if event.tokens < (rule.min_tokens or 0) or event.tokens * (1 - self.retention.identifiers) <= STUB_TOKENS:
            return "below_minimum"
        return "listing" if event.seq in self._old else "newest"

    def _of_call(self, call: Item) -> Protection:
        if call.tokens < ARGUMENTS_TOKENS_MIN:
            return "below_minimum"
        if not self.retention.arguments:
            return "arguments_stay"
        return "never_evict" if self.retention.rule(call.event.tool or "") is None else "newest"


Source = Literal["tools", "system", "summaries", "history", "current_turn", "ephemeral"]
Wording = Literal[
    "verbatim",
    "stub",
    "shortened",
    "replaced",
    "converted",
    "erased",
    "summary",
    "note",
    "pending",
    "layer",
    "notice",
    "injected",
]


@dataclass(frozen=True, slots=True)
class CallBlock:
    """A block of a request, at the position `index`.

    It shows the event `seq`, or has the server's words in place of the events from_seq..seq. `tokens` are the model's.
    `protected_by` is the reason for which it stays whole. `name` is the kind of a layer, or the name of an injection.
    `breakpoint` is the kind of the cache breakpoint after the block.
    """

    block: Block = field(repr=False)
    source: Source
    mark: Wording
    tokens: int
    index: int = 0
    first: int | None = None
    name: str | None = None
    reducer: str | None = None
    reason: str | None = None
    summaries: tuple[str, ...] = ()
    breakpoint: str | None = None
    protected_by: Protection | None = None

    @property
    def from_seq(self) -> int:
        """The seq of the first event in whose place it is."""
        return self.seq if self.first is None else self.first

    @property
    def seq(self) -> int:
        """The seq of its event, or of the last event in whose place it is."""
        return self.block.seq

    @property
    def kind(self) -> str:
        """`tools`, or the kind of the block."""
        return kind_of(self.block)

    @property
    def tool(self) -> str | None:
        """The tool that a call or a result names."""
        return None if self.kind == TOOLS else self.block.tool

    @property
    def call_id(self) -> str | None:
        """The id of a tool call, also in its result."""
        return self.block.call_id

    @property
    def text(self) -> str:
        """The text of the block: of a tool call its arguments as JSON."""
        return self.block.text


def call_blocks(
    call: ReplayedCall,
    state: Frontier,
    record: CallRecord,
    erased: Collection[int] = (),
    stays: Protections | None = None,
    *,
    exact: bool = True,
) -> tuple[CallBlock, ...]:
    """Return the blocks of a recorded call that was rendered again from the frontier `state`.

    `erased` are the seqs of events that were erased by now, `stays` are the protections of the others, if known. If the
    rendering is `exact`, the tokens of each source add up to the figure in the call's record, but for the tokens that a
    request takes without any block.
    """
    prefix, blocks = call.layout.prefix, call.layout.blocks
    ephemeral = _ephemeral(record.manifest)
    front, end = len(call.context.summaries) + bool(state.note), len(blocks) - len(ephemeral)
    described = [
        *_of_prefix(prefix, call),
        *_summaries(blocks[: len(call.context.summaries)], state),
        *(_note(block, state) for block in blocks[len(call.context.summaries) : front]),
        *_events(blocks[front:end], call, erased, _resumed_tokens(state)),
        *(_after(block, mark, name) for block, (mark, name) in zip(blocks[end:], ephemeral, strict=True)),
    ]
    described = _with_losses(described, call, record.format)
    described = [_protected(one, stays) for one in described] if stays is not None else described
    points = _breakpoints(described, call)
    tokens = _model_tokens(described, record.manifest, exact=exact)
    return tuple(
        replace(one, index=index, tokens=tokens[index], breakpoint=points.get(index))
        for index, one in enumerate(described)
    )


def _of_prefix(blocks: Sequence[Block], call: ReplayedCall) -> Iterator[CallBlock]:
    tokens = {event.seq: event.tokens for event in call.context.prefix}
    for block in blocks:
        source: Source = "tools" if kind_of(block) == TOOLS else "system"
        yield CallBlock(block, source, "verbatim", tokens[block.seq])


def _summaries(blocks: Sequence[Block], state: Frontier) -> Iterator[CallBlock]:
    """Describe the blocks of summaries: one with all of them, or as in early epochs one for each."""
    for block in blocks:
        folds = [fold for fold in state.folds if len(blocks) == 1 or fold.to_seq == block.seq]
        shown = tuple(fold.id for fold in folds if fold.shown)
        tokens = (
            state.summary_tokens - _resumed_tokens(state) if len(blocks) == 1 else sum(fold.tokens for fold in folds)
        )
        first = folds[0].from_seq if folds else None
        yield CallBlock(block, "summaries", "summary", tokens, first=first, reducer="fold", summaries=shown)


def _note(block: Block, state: Frontier) -> CallBlock:
    return CallBlock(
        block, "history", "note", state.note_tokens, first=state.drops[0].from_seq if state.drops else None
    )


def _resumed_tokens(state: Frontier) -> int:
    """Return the tokens of the line that ends the older messages after summaries; 0 without it."""
    return NO_COUNT.message(wording.RESUMED) if state.older_to else 0


def _events(
    blocks: Sequence[Block], call: ReplayedCall, erased: Collection[int], resumed_tokens: int
) -> Iterator[CallBlock]:
    """Describe the blocks of events, those of results that are still missing, and the line after older messages."""
    context = call.context
    items = {item.event.seq: item for item in context.items}
    for block in blocks:
        if block.kind is Kind.NOTE and block.replaced and block.content == wording.RESUMED:
            yield CallBlock(block, "summaries", "note", resumed_tokens)
            continue
        item = items[block.seq]
        source: Source = "current_turn" if item.event.turn == context.turn else "history"
        if block.kind is Kind.RESULT and item.event.type is EventType.TOOL_CALL:
            yield CallBlock(block, "current_turn", "pending", NO_COUNT.result(wording.PENDING))
            continue
        mark, reducer, reason = _decision(item, erased)
        yield CallBlock(block, source, mark, item.tokens, reducer=reducer, reason=reason)


def _decision(item: Item, erased: Collection[int]) -> tuple[Wording, str | None, str | None]:
    """Return how an item is shown, and the reducer and the reason if it is not shown whole."""
    if item.event.seq in erased:
        return "erased", None, "erased on request"
    if (stub := item.stub) is None:
        return "verbatim", None, None
    whole = not stub.chars and item.event.type is not EventType.TOOL_CALL
    mark: Wording = "replaced" if stub.text else "stub" if whole else "shortened"
    return mark, stub.reducer, stub.reason


def _ephemeral(manifest: CallManifest) -> list[tuple[Wording, str | None]]:
    """Return the mark and the name of each block after the conversation, in the order of `ephemeral_content`."""
    layers: list[tuple[Wording, str | None]] = [("layer", kind) for kind in LAYERS if kind in manifest.layers]
    notice: list[tuple[Wording, str | None]] = [("notice", None)] if manifest.notice is not None else []
    return [*layers, *notice, *(("injected", name) for name, _ in manifest.injections)]


def _after(block: Block, mark: Wording, name: str | None) -> CallBlock:
    draft = Draft(EventType.ANNOUNCE, content=block.content)
    return CallBlock(block, "ephemeral", mark, NO_COUNT.event(draft), name=name)


def _with_losses(described: Sequence[CallBlock], call: ReplayedCall, form: str) -> list[CallBlock]:
    """Return the blocks, with those marked `converted` that lost content that the request's format cannot express."""
    if not call.losses:
        return list(described)
    lost: dict[tuple[Kind, int], list[str]] = {}
    for loss in call.losses:  # notes may share a seq, and only they keep their order
        key = (loss.kind, loss.number if loss.kind is Kind.NOTE else loss.seq)
        lost.setdefault(key, []).append(loss_reason(loss, form))
    done, notes = [], 0
    for one in described:
        notes += one.block.kind is Kind.NOTE
        reasons = lost.get((one.block.kind, notes if one.block.kind is Kind.NOTE else one.seq))
        if reasons and one.source not in ("tools", "system") and one.mark == "verbatim":
            one = replace(one, mark="converted", reducer=FORMAT, reason=", ".join(reasons))
        done.append(one)
    return done


def _protected(one: CallBlock, stays: Protections) -> CallBlock:
    """Return a block that is shown whole with the reason for which it stays."""
    if one.mark != "verbatim":
        return one
    if one.source in ("tools", "system"):
        return replace(one, protected_by="prefix")
    item = stays.context.item(one.seq)
    return one if item is None else replace(one, protected_by=stays.protection(item))


def _breakpoints(described: Sequence[CallBlock], call: ReplayedCall) -> dict[int, str]:
    """Return the kinds of cache breakpoints by the index of the block that each follows."""
    prefix = len(call.layout.prefix)
    stable = enumerate(described[prefix:], prefix)
    places = {one.seq: index for index, one in stable if not one.block.ephemeral}
    found: dict[int, str] = {}
    for point in call.request.breakpoints:
        index = prefix - 1 if point.kind == "system" else places.get(point.seq)
        if index is not None and index >= 0:
            found[index] = point.kind
    return found


def _model_tokens(described: Sequence[CallBlock], manifest: CallManifest, *, exact: bool) -> list[int]:
    """Return the tokens of the blocks in the model's, which add up to each source's part of an `exact` call's record.

    A record has no tokens of single blocks: those after the conversation share their part by size.
    """
    ratio = manifest.calibration.ratio if manifest.calibration else 1.0
    own: Counter[str] = Counter()
    for one in described:
        own[one.source] += one.tokens
    totals = {source: provider_tokens(tokens, ratio) for source, tokens in own.items()}
    if exact:
        totals |= {source: tokens for source, tokens in _recorded(manifest, ratio).items() if source in totals}
    before: Counter[str] = Counter()
    tokens = []
    for one in described:
        total, size, start = totals[one.source], max(1, own[one.source]), before[one.source]
        before[one.source] = start + one.tokens
        tokens.append(total * (start + one.tokens) // size - total * start // size)
    return tokens


def _recorded(manifest: CallManifest, ratio: float) -> dict[str, int]:
    """Return a record's tokens by source, without those that a request takes without any block."""
    recorded = dict(manifest.by_source)
    if "ephemeral" in recorded:
        recorded["ephemeral"] = max(0, recorded["ephemeral"] - provider_tokens(REQUEST_TOKENS, ratio))
    return recorded

"""A layout made fit for one format, before that format writes it: what its provider would refuse is taken off what came
in its own shapes, and what came in another's is carried over as text as far as it has any.

What can be carried only in part, or not at all, is told: nothing is lost without a word.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final

from app.core.log.block import ROUND_KINDS, Block, Kind
from app.core.log.events import Json, Part
from app.core.render.formats import FORMATS, anthropic_parts, openai_responses
from app.core.render.formats.layout import Layout
from app.core.render.formats.parts import is_opaque, own

CARRIED_CHARS_MAX: Final = 20_000
"""Of one part that its own provider alone understands, no more than this is carried over."""

_LISTS: Final = ("content", "citations", "output")
"""Fields that hold objects with such fields of their own."""
_CITED: Final = frozenset({"char_location", "page_location", "content_block_location"})
_NOT_TEXT: Final = frozenset(
    {"type", "id", "status", "role", "call_id", "tool_use_id", "container_id", "media_type", "mime", "format", "detail"}
)
_BINARY: Final[Mapping[str, str]] = {
    "data": "data",
    "file_data": "data",
    "result": "data",
    "encrypted_content": "encrypted_content",
    "encrypted_stdout": "encrypted_content",
    "encrypted_index": "encrypted_content",
    "signature": "encrypted_content",
    "file_id": "file_id",
}
"""Fields that mean something to their own provider alone, and what is said to be lost with them."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What of one event a format has no place for, besides the text that was carried over."""

    seq: int
    kind: Kind
    number: int
    """Of the layout's blocks of that kind, which one it is."""
    what: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """A layout as its format is to write it, and what that leaves out."""

    layout: Layout
    losses: tuple[Loss, ...] = ()


def fit(layout: Layout, form: str) -> Fitted:
    """The layout for a provider's format; `blocks` takes everything as it is."""
    if not FORMATS[form].native:
        return Fitted(layout)
    losses: list[Loss] = []
    counts = dict.fromkeys(Kind, 0)
    blocks = []
    for block in layout.blocks:
        counts[block.kind] += 1
        fitted, lost = _block(block, form)
        blocks.append(fitted)
        losses += [Loss(block.seq, block.kind, counts[block.kind], what) for what in lost]
    system = tuple(_block(block, form)[0] for block in layout.system)
    return Fitted(replace(layout, system=system, blocks=tuple(blocks)), tuple(losses))


def in_steps(layout: Layout, form: str) -> Layout:
    """The layout with each round in the order that a format can only be appended to.

    A chat message holds its text before its calls. Text that was said behind a call would therefore change the message
    that made the call, which may have been sent already. It begins a message of its own instead, behind the results of
    the calls before it. Where one of those is still pending, it and what follows belong to the ephemeral tail.
    """
    behind_calls = (a.kind is Kind.CALL and b.kind is Kind.ASSISTANT for a, b in pairwise(layout.blocks))
    if not FORMATS[form].calls_last or not any(behind_calls):
        return layout
    blocks: list[Block] = []
    rounds = groupby(layout.blocks, key=lambda block: block.kind in ROUND_KINDS)
    for is_rounds, run in rounds:
        blocks += _in_steps(list(run)) if is_rounds else run
    return replace(layout, blocks=tuple(blocks))


def _in_steps(run: Sequence[Block]) -> Iterator[Block]:
    """Blocks of the assistant and their results, round by round, each step's results behind it."""
    results: list[Block] = []
    steps: list[list[Block]] = [[]]
    for block in run:
        if block.kind is Kind.RESULT:
            results.append(block)
            continue
        if results:
            yield from _closed(steps, results)
            steps, results = [[]], []
        if block.kind is Kind.ASSISTANT and any(one.kind is Kind.CALL for one in steps[-1]):
            steps.append([])
        steps[-1].append(block)
    yield from _closed(steps, results)


def _closed(steps: Sequence[Sequence[Block]], results: Sequence[Block]) -> Iterator[Block]:
    """The steps of one round, each with the results of its calls behind it; the last with all others."""
    left = list(results)
    tail = False
    for number, step in enumerate(steps, 1):
        yield from (replace(block, ephemeral=True) for block in step) if tail else step
        wanted = Counter(block.call_id for block in step if block.kind is Kind.CALL)
        own_results = []
        for result in tuple(left):
            if wanted[result.call_id] or number == len(steps):
                wanted[result.call_id] -= 1
                own_results.append(result)
                left.remove(result)
        tail = tail or any(result.ephemeral for result in own_results)
        yield from (replace(result, ephemeral=True) for result in own_results) if tail else own_results


def _block(block: Block, form: str) -> tuple[Block, Sequence[str]]:
    if block.native is None and not isinstance(block.content, list):
        return block, ()
    if own(block, form):
        native = block.native or {}
        plain = block.kind is not Kind.SYSTEM and not isinstance(block.content, list)
        bare = plain and not native.get("head") and not native.get("part")
        return (block if bare else _cleaned(block, form)), ()
    return _carried(block, form)


def _cleaned(block: Block, form: str) -> Block:
    """A block of the format's own without what only an SDK knows; the same one where there is nothing of that."""
    native = block.native or {}
    head, part = native.get("head"), native.get("part")
    told = {"head": _head(head, block.kind, form), "part": _part(part, form)}
    content, arguments = block.content, block.arguments
    if isinstance(content, list):
        content = _each(content, form)
    if (
        part and "item" in part and form == openai_responses.NAME
    ):  # a call of the provider's own kind: its item's fields
        arguments = _sendable(arguments, form)
    if told["head"] is head and told["part"] is part and content is block.content and arguments is block.arguments:
        return block
    kept = {name: value for name, value in {**native, **told}.items() if value is not None}
    return replace(block, content=content, arguments=arguments, native=kept)


def _head(head: Json, kind: Kind, form: str) -> Json:
    """The fields of a message. Anthropic's have none but its role, which is the system's in the middle of a session."""
    if head is None:
        return None
    if form == anthropic_parts.NAME:
        wanted = {"role": "system"} if kind is Kind.SYSTEM else {}
        return head if head == wanted else wanted
    head = _sendable(head, form)
    audio = head.get("audio")
    return {**head, "audio": {"id": audio.get("id")}} if isinstance(audio, dict) and len(audio) > 1 else head


def _part(part: Json, form: str) -> Json:
    """What one call, result or item has of its own."""
    if not part:
        return part
    kept = {name: _sendable(value, form) for name, value in part.items()}
    item = kept.get("item")
    if isinstance(item, dict) and item.get("type") == "custom_tool_call_output" and "status" in item:
        kept["item"] = {name: value for name, value in item.items() if name != "status"}
    return part if all(kept[name] is value for name, value in part.items()) else kept


def _each(values: list[Json], form: str) -> list[Json]:
    """The values made sendable; the same list where they all are."""
    kept = [_sendable(value, form) for value in values]
    return values if all(one is value for one, value in zip(kept, values, strict=True)) else kept


def _sendable(value: Json, form: str) -> Json:
    """An object without the fields that only an SDK knows, and without those it sets to null for want of a value: all
    other fields are some vendor's own, and go back to it.

    The same object where it has none.
    """
    if not isinstance(value, dict):
        return value
    foreign = FORMATS[form].sdk_only
    if value.get("type") in _CITED:
        foreign = foreign | {"file_id"}
    changed = {name: _each(inner, form) for name in _LISTS if isinstance(inner := value.get(name), list) and inner}
    nulls = not FORMATS[form].keeps_nulls
    gone = [
        name
        for name, child in value.items()
        if name in foreign or (child is None and (name == "tool_calls" or (nulls and name != "call_id")))
    ]
    if not gone and all(inner is value[name] for name, inner in changed.items()):
        return value
    return {name: changed.get(name, child) for name, child in value.items() if name not in gone}


def _carried(block: Block, form: str) -> tuple[Block, Sequence[str]]:
    """A block of another format, or of none, with text in the place of what this one has no place for."""
    lost: list[str] = []
    content = block.content
    if isinstance(content, list) and any(is_opaque(part) for part in content):
        content = [_as_text(part, lost) if is_opaque(part) else part for part in content]
    beside = _beside(block, lost) if block.kind is Kind.ASSISTANT and not own(block, form) else []
    if beside:
        before: list[Part] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
        content = [*before, *beside]
    return (block, ()) if content is block.content else (replace(block, content=content), tuple(dict.fromkeys(lost)))


def _beside(block: Block, lost: list[str]) -> list[Part]:
    """What an assistant's chat message holds beside its content: audio, and a call of the old kind."""
    head = (block.native or {}).get("head") or {}
    found: list[Part] = []
    if isinstance(audio := head.get("audio"), Mapping):
        found.append(_as_text({"type": "audio", "transcript": audio.get("transcript")}, lost))
    if isinstance(call := head.get("function_call"), Mapping):
        found.append({"type": "text", "text": f"[function_call]\n{call.get('name')}\n{call.get('arguments')}"})
    return found


def _as_text(part: Part, lost: list[str]) -> Part:
    """An opaque part as text: what it is, and every text that it holds."""
    kind = str(part.get("type") or "part")
    lines: list[str] = []
    missing: list[str] = []
    for text, what in _leaves(part):
        (missing if what else lines).append(what or text)
    if "audio" in kind:
        lost.append("audio")
    elif missing:
        lost += missing
    elif not lines:
        lost.append(kind)
    text = "\n".join([f"[{kind}]", *lines])
    return {"type": "text", "text": text[:CARRIED_CHARS_MAX]}


def _leaves(value: Json, name: str = "") -> Iterator[tuple[str, str]]:
    """The texts of a part in their order; of what is none, what is lost with it."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            if key in _BINARY and isinstance(child, str):
                if child:
                    yield "", _BINARY[key]
            elif key not in _NOT_TEXT or isinstance(child, (Mapping, list)):
                yield from _leaves(child, key)
    elif isinstance(value, list):
        for child in value:
            yield from _leaves(child, name)
    elif isinstance(value, str) and value.strip():
        yield value, ""

"""Fitting a layout to one format before that format writes it.

Blocks that came in this format lose what its provider would refuse. Of blocks from other formats, parts that this one
has no place for are carried over as text. What is lost on the way is reported as `Loss`.

`prepare` is what new and recorded calls share: everything between the layout and the format, by render version.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final

from app.core.log.block import ROUND_KINDS, Block, Kind
from app.core.log.events import Json, Part
from app.core.plan.context.wording import RENDER_VERSION
from app.core.render.formats import FORMATS, anthropic_parts, gemini_parts, openai_responses
from app.core.render.formats.layout import Layout
from app.core.render.formats.parts import is_opaque, is_own, without

CARRIED_CHARS_MAX: Final = 20_000
"""The most characters carried over of one part that only its own provider understands."""

_LISTS: Final = ("content", "citations", "output")
"""Fields that hold lists of objects, which are cleaned like the object itself."""
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
"""Fields that only their own provider understands, each with the name under which its loss is reported."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Something in one event that a format has no place for and that is not carried over as text."""

    seq: int
    kind: Kind
    number: int
    """The block's position among the layout's blocks of its kind, from 1."""
    what: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """A layout as its format is to write it, and what was lost from it."""

    layout: Layout
    losses: tuple[Loss, ...] = ()


def prepare(layout: Layout, form: str, version: int = RENDER_VERSION) -> Fitted:
    """The layout as a render version hands it to the format `form`. `version` is one of PREPARED_BY."""
    return PREPARED_BY[version](layout, form)


def fit(layout: Layout, form: str) -> Fitted:
    """Fit the layout to the format `form`; `blocks` takes every layout as it is."""
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


def split_rounds(layout: Layout, form: str) -> Layout:
    """The layout with each round in an order that only grows at its end as events are appended.

    A chat message holds its text before its calls. Text behind a call would therefore change the message of that call,
    which may have been sent already. Such text begins a new message instead, behind the results of the calls before it.
    If one of those results is pending, it and the rest of the round belong to the ephemeral tail.
    """
    behind_calls = (a.kind is Kind.CALL and b.kind is Kind.ASSISTANT for a, b in pairwise(layout.blocks))
    if not FORMATS[form].calls_last or not any(behind_calls):
        return layout
    blocks: list[Block] = []
    rounds = groupby(layout.blocks, key=lambda block: block.kind in ROUND_KINDS)
    for is_rounds, run in rounds:
        blocks += _split_run(list(run)) if is_rounds else run
    return replace(layout, blocks=tuple(blocks))


def _fit_and_split(layout: Layout, form: str) -> Fitted:
    fitted = fit(layout, form)
    return replace(fitted, layout=split_rounds(fitted.layout, form))


PREPARED_BY: Final[Mapping[int, Callable[[Layout, str], Fitted]]] = {
    1: lambda layout, _: Fitted(layout),  # everything in the shapes it came in, whoever is to read it
    2: fit,
    3: _fit_and_split,
    4: _fit_and_split,  # folds may be joined, which the frontier says
}
"""What each render version does between layout and format. An entry never changes: calls recorded under it name it."""


def _split_run(run: Sequence[Block]) -> Iterator[Block]:
    """The blocks of adjacent rounds, each round split into steps (text, then calls) with their results behind them."""
    results: list[Block] = []
    steps: list[list[Block]] = [[]]
    for block in run:
        if block.kind is Kind.RESULT:
            results.append(block)
            continue
        if results:
            yield from _with_results(steps, results)
            steps, results = [[]], []
        if block.kind is Kind.ASSISTANT and any(earlier.kind is Kind.CALL for earlier in steps[-1]):
            steps.append([])
        steps[-1].append(block)
    yield from _with_results(steps, results)


def _with_results(steps: Sequence[Sequence[Block]], results: Sequence[Block]) -> Iterator[Block]:
    """The steps of one round, each followed by the results of its calls, the last by all results that remain.

    A round of one step is as it was, whatever other rounds the layout has: a context is also written piece by piece.
    """
    if len(steps) == 1:
        yield from (*steps[0], *results)
        return
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
    if is_own(block, form):
        native = block.native or {}
        plain = block.kind is not Kind.SYSTEM and not isinstance(block.content, list)
        bare = plain and not native.get("head") and not native.get("part")
        return (block if bare else _clean(block, form)), ()
    return _convert(block, form)


def _clean(block: Block, form: str) -> Block:
    """A block of this format without fields that only its SDK knows; the same object if it has none."""
    native = block.native or {}
    head, part = native.get("head"), native.get("part")
    new = {"head": _head(head, block.kind, form), "part": _part(part, form)}
    content, arguments = block.content, block.arguments
    if isinstance(content, list):
        content = _all_sendable(content, form)
    if (
        part and "item" in part and form == openai_responses.NAME
    ):  # a call of the provider's own kind: its item's fields
        arguments = _sendable(arguments, form)
    if new["head"] is head and new["part"] is part and content is block.content and arguments is block.arguments:
        return block
    kept = {name: value for name, value in {**native, **new}.items() if value is not None}
    return replace(block, content=content, arguments=arguments, native=kept)


def _head(head: Json, kind: Kind, form: str) -> Json:
    """The fields of a message, cleaned. Anthropic's have none but the role `system` of a later system message."""
    if head is None:
        return None
    if form == anthropic_parts.NAME:
        wanted = {"role": "system"} if kind is Kind.SYSTEM else {}
        return head if head == wanted else wanted
    head = _sendable(head, form)
    audio = head.get("audio")
    return {**head, "audio": {"id": audio.get("id")}} if isinstance(audio, dict) and len(audio) > 1 else head


def _part(part: Json, form: str) -> Json:
    """The extra fields of one call, result or item, cleaned; the same object if nothing changes."""
    if not part:
        return part
    kept = {name: _sendable(value, form) for name, value in part.items()}
    item = kept.get("item")
    if isinstance(item, dict) and item.get("type") == "custom_tool_call_output" and "status" in item:
        kept["item"] = {name: value for name, value in item.items() if name != "status"}
    return part if all(kept[name] is value for name, value in part.items()) else kept


def _all_sendable(values: list[Json], form: str) -> list[Json]:
    """The values, each made sendable; the same list if nothing changes."""
    kept = [_sendable(value, form) for value in values]
    return values if all(cleaned is value for cleaned, value in zip(kept, values, strict=True)) else kept


def _sendable(value: Json, form: str) -> Json:
    """An object without the fields that only an SDK knows, and without fields that it sets to null; the same if it has
    none.

    All other unknown fields are a vendor's own, and are sent back.
    """
    if not isinstance(value, dict):
        return value
    foreign = FORMATS[form].sdk_only
    if value.get("type") in _CITED:
        foreign = foreign | {"file_id"}
    changed = {
        name: _all_sendable(inner, form) for name in _LISTS if isinstance(inner := value.get(name), list) and inner
    }
    nulls = not FORMATS[form].keeps_nulls
    gone = [
        name
        for name, child in value.items()
        if name in foreign or (child is None and (name == "tool_calls" or (nulls and name != "call_id")))
    ]
    if not gone and all(inner is value[name] for name, inner in changed.items()):
        return value
    return {name: changed.get(name, child) for name, child in value.items() if name not in gone}


def _convert(block: Block, form: str) -> tuple[Block, Sequence[str]]:
    """A block of another format or of none, with text for parts that this format has no place for; and what is lost."""
    lost: list[str] = []
    content = block.content
    if isinstance(content, list) and any(is_opaque(part) for part in content):
        signed = gemini_parts.SIGNATURES if is_own(block, gemini_parts.NAME) else ()
        content = [_as_text(without(part, *signed), lost) if is_opaque(part) else part for part in content]
    beside = _beside_content(block, lost) if block.kind is Kind.ASSISTANT and not is_own(block, form) else []
    if beside:
        before: list[Part] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
        content = [*before, *beside]
    return (block, ()) if content is block.content else (replace(block, content=content), tuple(dict.fromkeys(lost)))


def _beside_content(block: Block, lost: list[str]) -> list[Part]:
    """What an assistant's chat message holds beside its content, as text: audio, and a legacy `function_call`."""
    head = (block.native or {}).get("head") or {}
    found: list[Part] = []
    if isinstance(audio := head.get("audio"), Mapping):
        found.append(_as_text({"type": "audio", "transcript": audio.get("transcript")}, lost))
    if isinstance(call := head.get("function_call"), Mapping):
        found.append({"type": "text", "text": f"[function_call]\n{call.get('name')}\n{call.get('arguments')}"})
    return found


def _as_text(part: Part, lost: list[str]) -> Part:
    """An opaque part as text: its type, and every text in it; what is lost is added to `lost`."""
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
    """The leaves of a part in order, as (text, "") or for a binary field as ("", the name of its loss)."""
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

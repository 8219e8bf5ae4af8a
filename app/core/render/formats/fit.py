"""Fitting of a layout to one format before that format writes it.

Blocks that came in this format lose fields that its provider would refuse. Parts of other formats' blocks that this one
cannot express are carried over as text; anything lost is reported as `Loss`.

`prepare` is used by new and recorded calls alike: it does everything between layout and format, by render version.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Final

from app.core import dataclass, replace
from app.core.log.event import ROUND_KINDS, Block, Kind
from app.core.log.events import Json, Part
from app.core.plan.state.wording import RENDER_VERSION
from app.core.render.formats import FORMATS, anthropic, gemini, openai_responses
from app.core.render.formats.layout import Layout
from app.core.render.formats.parts import is_opaque, is_own, text_part, without

CARRIED_CHARS_MAX: Final = 20_000
"""The most characters carried over as text from a part that only its own provider understands."""

_LISTS: Final = ("content", "citations", "output")
"""Fields with lists of objects, which are cleaned like the object itself."""
_CITED: Final = ("char_location", "page_location", "content_block_location")
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
    """Content of one event that a format cannot express and that is not carried over as text."""

    seq: int
    kind: Kind
    number: int
    """The block's position among the layout's blocks of its kind, from 1."""
    what: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """A layout as its format will write it, and the content that it lost."""

    layout: Layout
    losses: tuple[Loss, ...] = ()


def prepare(layout: Layout, form: str, version: int = RENDER_VERSION) -> Fitted:
    """Return the layout as a render version passes it to the format `form`. `version` is one of PREPARED_BY."""
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
        if block.native is None and not isinstance(block.content, list):
            blocks.append(block)
            continue
        fitted, lost = _block(block, form)
        blocks.append(fitted)
        losses += [Loss(block.seq, block.kind, counts[block.kind], what) for what in lost]
    system = tuple(_block(block, form)[0] for block in layout.system)
    return Fitted(Layout(layout.tools, layout.tools_seq, system, tuple(blocks)), tuple(losses))


def split_rounds(layout: Layout, form: str) -> Layout:
    """Return the layout with each round in an order that only grows at its end as events are appended.

    A chat message holds its text before its calls. Text after a call would therefore change the message of that call,
    which may have been sent already. Such text begins a new message instead, after the results of the calls before it.
    If one of those results is pending, it and the rest of the round belong to the ephemeral tail.
    """
    text_after_call = (a.kind is Kind.CALL and b.kind is Kind.ASSISTANT for a, b in pairwise(layout.blocks))
    if not FORMATS[form].calls_last or not any(text_after_call):
        return layout
    blocks: list[Block] = []
    rounds = groupby(layout.blocks, key=lambda block: block.kind in ROUND_KINDS)
    for is_rounds, run in rounds:
        blocks += _split_run(list(run)) if is_rounds else run
    return replace(layout, blocks=tuple(blocks))


def _fit_and_split(layout: Layout, form: str) -> Fitted:
    fitted = fit(layout, form)
    return Fitted(split_rounds(fitted.layout, form), fitted.losses)


PREPARED_BY: Final[Mapping[int, Callable[[Layout, str], Fitted]]] = {
    1: lambda layout, _: Fitted(layout),  # everything in its original shapes, whatever the format
    2: fit,
    3: _fit_and_split,
    4: _fit_and_split,  # folds may be joined, and dated, in the frontier
}
"""The step between layout and format of each render version. An entry never changes: recorded calls depend on it."""


def _split_run(run: Sequence[Block]) -> Iterator[Block]:
    """Yield the blocks of adjacent rounds, each split into steps (text, then calls) followed by their results."""
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
    """Yield the steps of one round, each followed by the results of its calls, the last by all that remain.

    A round of one step is unchanged, whatever other rounds the layout has, because a context is also written in pieces.
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
    if is_own(block, form):
        native = block.native or {}
        plain = block.kind is not Kind.SYSTEM and not isinstance(block.content, list)
        bare = plain and not native.get("head") and not native.get("part")
        return (block if bare else _clean(block, form)), ()
    return _convert(block, form)


def _clean(block: Block, form: str) -> Block:
    """Return a block of this format without fields that only its SDK knows; the same object if it has none."""
    native = block.native or {}
    part = native.get("part")
    new = {**native, "head": _head(native.get("head"), block.kind, form), "part": _part(part, form)}
    content, arguments = block.content, block.arguments
    if isinstance(content, list):
        content = [_sendable(value, form) for value in content]
    if part and "item" in part and form == openai_responses.NAME:  # the arguments may be fields of the item
        arguments = _sendable(arguments, form)
    kept = {name: value for name, value in new.items() if value is not None}
    if (content, arguments, kept) == (block.content, block.arguments, block.native):
        return block  # two equal ones would take the memory of both
    return replace(block, content=content, arguments=arguments, native=kept)


def _head(head: Json, kind: Kind, form: str) -> Json:
    """Return the cleaned fields of a message. Anthropic's has none, or the role `system` of a later system message."""
    if head is None:
        return None
    if form == anthropic.NAME:
        return {"role": "system"} if kind is Kind.SYSTEM else {}
    head = _sendable(head, form)
    audio = head.get("audio")
    return {**head, "audio": {"id": audio.get("id")}} if isinstance(audio, dict) and len(audio) > 1 else head


def _part(part: Json, form: str) -> Json:
    """Return the cleaned extra fields of one call, result or item."""
    if not part:
        return part
    kept = {name: _sendable(value, form) for name, value in part.items()}
    item = kept.get("item")
    if isinstance(item, dict) and item.get("type") == "custom_tool_call_output":
        kept["item"] = without(item, "status")
    return kept


def _sendable(value: Json, form: str) -> Json:
    """Return an object without fields that only an SDK knows or sets to null.

    All other unknown fields are a vendor's own, and are sent back.
    """
    if not isinstance(value, dict):
        return value
    foreign, keeps_nulls = FORMATS[form].sdk_only, FORMATS[form].keeps_nulls
    if value.get("type") in _CITED:
        foreign = foreign | {"file_id"}
    kept: dict[str, Json] = {}
    for name, child in value.items():
        if name in foreign or (child is None and (name == "tool_calls" or not (keeps_nulls or name == "call_id"))):
            continue
        listed = name in _LISTS and isinstance(child, list)
        kept[name] = [_sendable(one, form) for one in child] if listed else child
    return kept


def _convert(block: Block, form: str) -> tuple[Block, Sequence[str]]:
    """Return a block of another format or of none with inexpressible parts as text, and the names of its losses."""
    lost: list[str] = []
    content = block.content
    if isinstance(content, list) and any(is_opaque(part) for part in content):
        signed = gemini.SIGNATURES if is_own(block, gemini.NAME) else ()
        content = [_as_text(without(part, *signed), lost) if is_opaque(part) else part for part in content]
    extra = _outside_content(block, lost) if block.kind is Kind.ASSISTANT and not is_own(block, form) else []
    if extra:
        before: list[Part] = [text_part(content)] if isinstance(content, str) else list(content or ())
        content = [*before, *extra]
    return (block, ()) if content is block.content else (replace(block, content=content), tuple(dict.fromkeys(lost)))


def _outside_content(block: Block, lost: list[str]) -> list[Part]:
    """Return, as text, an assistant's chat content outside `content`: audio, and a legacy `function_call`."""
    head = (block.native or {}).get("head") or {}
    found: list[Part] = []
    if isinstance(audio := head.get("audio"), Mapping):
        found.append(_as_text({"type": "audio", "transcript": audio.get("transcript")}, lost))
    if isinstance(call := head.get("function_call"), Mapping):
        found.append(text_part(f"[function_call]\n{call.get('name')}\n{call.get('arguments')}"))
    return found


def _as_text(part: Part, lost: list[str]) -> Part:
    """Return an opaque part as text: its type, and every text in it. Losses are added to `lost`."""
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
    return text_part(text[:CARRIED_CHARS_MAX])


def _leaves(value: Json, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a part in order, as (text, "") or for a binary field as ("", the name of its loss)."""
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

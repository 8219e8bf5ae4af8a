"""Removal of redacted content from the texts of earlier plans."""

from dataclasses import replace
from typing import Any

import pytest

from app.core.log.event import ERASED, ERASED_TOKENS, Block, Event, Kind, tombstone
from app.core.log.events import BOOKKEEPING, FIELDS, NAME_CHARS_MAX, PREFIX, EventType
from app.core.plan.state.frontier import START, LeftOut
from app.core.plan.state.stubs import erase_quotes
from app.core.plan.state.wording import note
from app.core.render.formats import FORMATS
from app.core.render.formats.fit import prepare
from app.core.render.formats.layout import Layout
from app.core.tokens.counter import CALL_TOKENS, FORMULAS, HEURISTIC, MESSAGE_TOKENS, SYSTEM_TOKENS
from tests.support import recount
from tests.support.written_requests import write_in


def test_a_name_is_taken_out_of_the_note_and_no_part_of_another() -> None:
    files = ((3, "a.py"), (5, "src/a.py"), (7, "src/a.py.orig"))
    left_out = LeftOut(turns=1, events=9, tokens=70, calls=(("a.py", 2),), files=files)
    state = replace(START, left_out=left_out, note=note(left_out))
    after = erase_quotes(state, 3)
    assert after.left_out.files == ((3, ERASED), *files[1:])
    assert after.note == note(after.left_out)
    assert f"Files modified in it: {ERASED}, src/a.py, src/a.py.orig." in after.note
    assert erase_quotes(after, 7).note == note(erase_quotes(after, 7).left_out)


BEFORE = Block(Kind.USER, 1, "go on")
SHOWN = [kind for kind in EventType if kind not in BOOKKEEPING | PREFIX]


@pytest.mark.parametrize("form", [name for name, form in FORMATS.items() if form.native])
@pytest.mark.parametrize("kind", SHOWN)
def test_the_text_of_a_redacted_event_is_within_its_count(kind: EventType, form: str) -> None:
    body: dict[str, Any] = {**dict.fromkeys(FIELDS, "n" * NAME_CHARS_MAX), "type": kind.value}
    names = {name: body[name] for name in ("call_id", "tool", "author")}
    event = Event(2, kind, turn=1, tokens=ERASED_TOKENS, is_error=True, body=tombstone(body), **names)
    before, after = (
        write_in(form, prepare(Layout(blocks=blocks), form).layout).request
        for blocks in ((BEFORE,), (BEFORE, event.block))
    )
    wrapping = CALL_TOKENS if kind in (EventType.TOOL_CALL, EventType.TOOL_RESULT) else MESSAGE_TOKENS
    wrapping += SYSTEM_TOKENS if kind is EventType.SYSTEM_MESSAGE else 0
    for estimator in (HEURISTIC, *FORMULAS.values()):
        shown = recount.count_tokens(after, estimator.count) - recount.count_tokens(before, estimator.count) + wrapping
        assert shown <= ERASED_TOKENS, f"it takes {shown} tokens: ERASED_TOKENS is no upper bound any more"

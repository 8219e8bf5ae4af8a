"""What a redaction takes out of what earlier plans quote."""

from dataclasses import replace

from app.core.log.event import ERASED
from app.core.plan.context.frontier import START, LeftOut
from app.core.plan.context.redaction import erase_quotes
from app.core.plan.context.wording import note


def test_a_name_is_taken_out_of_the_note_and_no_part_of_another() -> None:
    files = ((3, "a.py"), (5, "src/a.py"), (7, "src/a.py.orig"))
    left_out = LeftOut(turns=1, events=9, tokens=70, calls=(("a.py", 2),), files=files)
    state = replace(START, left_out=left_out, note=note(left_out, 9))
    after = erase_quotes(state, 3)
    assert after.left_out.files == ((3, ERASED), *files[1:])
    assert after.note == note(after.left_out, 9)
    assert f"Files modified in it: {ERASED}, src/a.py, src/a.py.orig." in after.note
    assert erase_quotes(after, 7).note == note(erase_quotes(after, 7).left_out, 9)

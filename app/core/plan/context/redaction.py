"""The effect of a redaction on frontiers that quote the event."""

from dataclasses import replace

from app.core.log.event import ERASED
from app.core.plan.context.frontier import Frontier
from app.core.plan.context.wording import noted_files


def erase_quotes(frontier: Frontier, seq: int) -> Frontier:
    """Erase a frontier's quotes of the redacted event `seq`; the stub and the file's entry stay."""
    stubs = tuple(replace(s, keeps=(), text=ERASED if s.text else "") if s.seq == seq else s for s in frontier.stubs)
    files = tuple((at, ERASED if at == seq else path) for at, path in frontier.left_out.files)
    left_out = replace(frontier.left_out, files=files)
    note = frontier.note.replace(noted_files(frontier.left_out), noted_files(left_out)) if files else frontier.note
    return replace(frontier, stubs=stubs, note=note, left_out=left_out)

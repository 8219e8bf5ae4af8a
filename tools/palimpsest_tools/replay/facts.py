"""Recorded usage as outcomes of replayed calls.

Usage is a fact about the bytes that the agent sent. It is reported as the outcome of the replayed call only if that
holds the same content: nothing is left out of the context, the agent itself had sent the whole conversation
(`ModelCall.whole`), and format and model are the recorded ones. The system prompt and tools that a log does not hold
were sent, too. Their tokens are the recorded input of the first such call, less the size of its context; each call
states them as `outside_tokens`, so that the estimator learns from the rest. If they would take more than half of the
window's target, nothing is stated or reported: the window is not the one that the agent had.

Sessions that are erased after the replay, comparisons and windows for a share teach nothing, because their figures are
to be the same every time.
"""

from dataclasses import dataclass
from typing import Any, Final, cast

from palimpsest import AsyncSession, PalimpsestError
from palimpsest.types import ContextOut

from app.core.render.formats import FORMATS
from palimpsest_tools.recordings.recording import ModelCall, RecordedUsage, Recording
from palimpsest_tools.replay.options import Options

_OUTSIDE_SHARE: Final = 0.5


@dataclass(slots=True)
class Outcomes:
    """The recorded usage of a session. `outside` is None until a call shows it; `refused` says why none is reported."""

    recording: Recording
    options: Options
    recorded: int = 0
    reported: int = 0
    outside: int | None = None
    refused: str = ""

    def __post_init__(self) -> None:
        calls = [step for step in self.recording.steps if isinstance(step, ModelCall)]
        self.recorded = sum(call.usage is not None for call in calls)
        if not self.options.outcomes:
            self.refused = "the sessions are not kept" if not self.options.keep else "windows or policies are compared"
        elif self.options.format_for(self.recording) != self.recording.format:
            self.refused = "the contexts have another format"

    def applies(self, call: ModelCall) -> bool:
        """Return whether the usage of a call may be a fact about a context that holds everything."""
        model = self.options.model
        return not self.refused and call.usage is not None and call.whole and model in (None, call.model)

    async def measure(self, session: AsyncSession, call: ModelCall, window: int | None, now: str | None) -> None:
        """Find the tokens that the agent sent outside the recorded conversation, at the first call that shows them."""
        if self.outside is not None or not self.applies(call) or call.usage is None:
            return
        try:
            form = cast(Any, self.options.format_for(self.recording))
            shown = await session.preview_context(format=form, max_tokens=window, model=call.model, now=now)
        except PalimpsestError:
            return  # the call itself is refused, too, and says why
        outside = max(0, call.usage.input - shown.tokens.estimate)
        if outside > _OUTSIDE_SHARE * shown.tokens.target:
            self.refused = "the window has no room for the tools that the agent sent"
        elif not shown.evictions:
            self.outside = outside

    async def report(self, session: AsyncSession, call: ModelCall, answer: ContextOut) -> None:
        """Report the usage of a call whose context holds everything. Raises PalimpsestError."""
        if self.outside is None or not self.applies(call) or call.usage is None or answer.evictions:
            return
        form = FORMATS[self.options.format_for(self.recording)]
        usage = usage_in(call.usage, excludes_cache=form.excludes_cached_tokens)
        await session.report_outcome(answer.call_id, usage=cast(Any, usage))
        self.reported += 1

    def notes(self) -> tuple[str, ...]:
        """Return the note for the user; none if no usage is recorded."""
        if not self.recorded:
            return ()
        if self.refused:
            return (f"usage of {self.recorded} calls is recorded, and not reported: {self.refused}",)
        beside = f", with {self.outside:,} tokens each that are not in the log" if self.outside else ""
        rest = self.recorded - self.reported
        others = f"; contexts that do not hold the same as was sent: {rest}" if rest else ""
        return (f"recorded usage of {self.reported} calls{beside}, is reported as outcomes{others}",)


def usage_in(usage: RecordedUsage, *, excludes_cache: bool) -> dict[str, int]:
    """Return usage as the API takes it: in some formats, the input does not include that of the cache."""
    cached = (usage.read or 0) + (usage.write or 0) if excludes_cache else 0
    figures = {
        "input_tokens": max(0, usage.input - cached),
        "cache_read_tokens": usage.read,
        "cache_write_tokens": usage.write,
        "output_tokens": usage.output,
    }
    return {name: value for name, value in figures.items() if value is not None}

"""Options of a replay: how contexts are requested, and the window for a share of a recording's tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from palimpsest import AsyncPalimpsest, AsyncSession, StatusError
from palimpsest.types import ContextOut, PolicyDocument

from app.core.log.events import PREFIX, Json
from palimpsest_tools.recordings.checks import parse_json, require_object
from palimpsest_tools.recordings.files import decode
from palimpsest_tools.recordings.recording import ModelCall, Recording
from palimpsest_tools.server import PAGE, append, new_session

ROOM_TOKENS_MIN: Final = 512
"""Least room for the conversation, however small the share. The running turn of a short session must fit, because
nothing can be left out of a user's message."""

_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy with its name on the command line; `policy` is a name or a document, as sent to the server."""

    name: str
    policy: str | Mapping[str, Json]


def named_policy(given: str) -> NamedPolicy:
    """Return the policy of a name or a file; `given` is a file if it has a slash or ends with `.json`.

    Raises OSError if the file cannot be read, MalformedRecording if it holds no JSON object.
    """
    if "/" not in given and not given.endswith(".json"):
        return NamedPolicy(given, given)
    return NamedPolicy(given, require_object(parse_json(decode(Path(given).read_bytes())), "a policy"))


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a replay. None leaves the choice to the server (for `format`, to the recording).

    Its sessions are erased at its end unless `keep` is true. `outcomes` means that recorded usage may be reported.
    """

    format: str | None = None
    max_tokens: int | None = None
    share: float | None = None
    model: str | None = None
    policy: str | Mapping[str, Json] | None = None
    keep: bool = False
    outcomes: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a new session."""
        return {"policy": cast(str | PolicyDocument | None, self.policy), "model": self.model, "keep": self.keep}

    def format_for(self, recording: Recording) -> str:
        """Return the format of a recording's contexts."""
        return self.format or recording.format or "openai"

    async def context(
        self,
        session: AsyncSession,
        recording: Recording,
        window_tokens: int | None,
        now: str | None = None,
        *,
        model: str | None = None,
        outside: int | None = None,
    ) -> ContextOut:
        """Request a context, for the recorded `model` unless another was chosen. Raises PalimpsestError."""
        return await session.post_context(
            format=cast(Any, self.format_for(recording)),
            max_tokens=window_tokens,
            model=self.model or model,
            outside_tokens=outside,
            now=now,
        )

    async def window(self, client: AsyncPalimpsest, recording: Recording, scratch: str) -> int | None:
        """Return the context window: `max_tokens`, or the window for `share` of the recording's tokens.

        For a share, the window's target is all of the system prompt and the tools, and that share of all other tokens,
        at least ROOM_TOKENS_MIN. The server counts the tokens in the new session `scratch`, which is then erased (the
        key must allow that). Raises CheckFailed or PalimpsestError.
        """
        if self.share is None:
            return self.max_tokens
        async with new_session(client, scratch, **replace(self, keep=False).settings) as session:
            for step in recording.batches():
                if not isinstance(step, ModelCall):
                    await append(session, step)
            counted = [(event.type in PREFIX, event.tokens) async for event in session.list_events(limit=PAGE)]
            prefix = sum(tokens for is_prefix, tokens in counted if is_prefix)
            others = sum(tokens for _, tokens in counted) - prefix
            return await self._fitting(session, recording, prefix + max(ROOM_TOKENS_MIN, round(self.share * others)))

    async def _fitting(self, session: AsyncSession, recording: Recording, target: int) -> int:
        """Find the window for a target by trial, since the reserve and margin taken from it depend on the policy."""
        window = target
        for _ in range(_ROUNDS):
            missing = target - await self._target(session, recording, window)
            if missing <= 0:
                break
            window += missing
        return window

    async def _target(self, session: AsyncSession, recording: Recording, window: int) -> int:
        try:
            return (await self.context(session, recording, window, model=recording.model)).tokens.target
        except StatusError as refusal:
            if "target" not in refusal.problem:
                raise
            return int(refusal.problem["target"])

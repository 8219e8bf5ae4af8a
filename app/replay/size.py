"""The window for a share of a recording's own size, counted by the server in a scratch session."""

from contextlib import suppress
from typing import Final

from app.core.log.events import Json
from app.replay.client import Client, RequestFailed
from app.replay.options import Options
from app.replay.recording import ModelCall, Recording

ROOM_TOKENS_MIN: Final = 512
"""Room beside the prefix however small the share: the running turn of a very short session must fit, as nothing can
be left out of a user's message."""

_ROUNDS: Final = 4


async def window_of(client: Client, recording: Recording, scratch: str, options: Options) -> int:
    """The window whose target is all of the system prompt and tools and `options.share` of everything else.

    It leaves room for ROOM_TOKENS_MIN of that else at least.
    The recording goes into the session `scratch`, which is erased again (that takes the right to). Raises Problem.
    """
    await client.put_session(scratch, options.policy, options.model)
    try:
        window = await _window(client, recording, scratch, options)
    except RequestFailed:
        with suppress(RequestFailed):  # what went wrong first is what to tell
            await client.delete_session(scratch)
        raise
    await client.delete_session(scratch)
    return window


async def _window(client: Client, recording: Recording, scratch: str, options: Options) -> int:
    """What reserve and margin take from a window depends on policy and model: try, and correct by what is missing."""
    steps = (step for step in recording.batches() if not isinstance(step, ModelCall))
    tokens: list[int] = [event["tokens"] for step in steps for event in await client.append(scratch, step)]
    prefix = len(recording.head())
    room = max(ROOM_TOKENS_MIN, round((options.share or 1.0) * sum(tokens[prefix:])))
    wanted = sum(tokens[:prefix]) + room
    window = wanted
    for _ in range(_ROUNDS):
        missing = wanted - await _target(client, scratch, options.context(recording, window))
        if missing <= 0:
            break
        window += missing
    return window


async def _target(client: Client, session: str, body: dict[str, Json]) -> int:
    try:
        return int((await client.context(session, body))["tokens"]["target"])
    except RequestFailed as problem:
        if "target" not in problem.fields:
            raise
        return int(problem.fields["target"])

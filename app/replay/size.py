"""The window for a share of a recording's tokens, counted by the server in a scratch session."""

from contextlib import suppress
from typing import Final

from app.core.log.events import PREFIX, Json
from app.recordings.recording import ModelCall, Recording
from app.remote.client import Client, RequestFailed
from app.replay.options import Options
from app.replay.verify import expected_events, is_spoken

ROOM_TOKENS_MIN: Final = 512
"""The least room beside the prefix, however small the share: the running turn of a short session must fit, because
nothing can be left out of a user's message."""

_ROUNDS: Final = 4


async def window_of(client: Client, recording: Recording, scratch: str, options: Options) -> int:
    """The window whose target is the system prompt, the tools, and `options.share` of all other tokens.

    That share is at least ROOM_TOKENS_MIN. The recording is appended to the session `scratch`, which is then deleted
    (the key must allow that). Raises RequestFailed.
    """
    await client.put_session(scratch, options.policy, options.model)
    try:
        window = await _window(client, recording, scratch, options)
    except RequestFailed:
        with suppress(RequestFailed):  # the first failure is the one to report
            await client.delete_session(scratch)
        raise
    await client.delete_session(scratch)
    return window


async def _window(client: Client, recording: Recording, scratch: str, options: Options) -> int:
    """Find the window by trying, since what reserve and margin take from it depends on policy and model."""
    prefix = others = 0
    spoken = False
    for step in recording.batches():
        if isinstance(step, ModelCall):
            continue
        sent = expected_events(step, spoken=spoken)
        for event, placed in zip(sent, await client.append(scratch, step), strict=True):
            spoken = spoken or is_spoken(event)
            if event["type"] in PREFIX:
                prefix += placed["tokens"]
            else:
                others += placed["tokens"]
    room = max(ROOM_TOKENS_MIN, round((options.share or 1.0) * others))
    wanted = prefix + room
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

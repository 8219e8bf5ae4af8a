"""A client's complete messages as events, with the hashes by which they are found in a log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from app.core.log.chain import Link, links, prompt_said, tools_said
from app.core.log.events import Draft, EventType, Json
from app.core.log.parse import parse_event, tool_definitions
from app.core.render.formats import FORMATS, anthropic_parts
from app.core.render.formats.parts import is_blank, native


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event, and the index of the message that it came from; None if it came from the request's other fields."""

    draft: Draft
    index: int | None


@dataclass(frozen=True, slots=True)
class ClientMessages:
    """The complete messages of a client.

    `events` are those of the conversation, of which `links` name the chained ones; `prompts` and `tools` are what goes
    in front of it, if the client says so. `count` is the number of messages.
    """

    format: str
    count: int
    events: tuple[ClientEvent, ...]
    links: tuple[Link, ...]
    prompts: tuple[ClientEvent, ...]
    tools: ClientEvent | None

    @property
    def prompts_said(self) -> tuple[bytes, ...]:
        """What the system prompts say."""
        return tuple(prompt_said(one.draft.content) for one in self.prompts)

    @property
    def tools_said(self) -> bytes | None:
        """What the tools are; None if the client does not say."""
        return None if self.tools is None else tools_said(tool_definitions(self.tools.draft.content))

    def behind(self, links_known: int) -> tuple[ClientEvent, ...]:
        """The events behind so many links; none if no link is among them, since reasoning goes with what follows it."""
        if links_known >= len(self.links):
            return ()
        return self.events[self.links[links_known - 1].place + 1 if links_known else 0 :]


def read_messages(form: str, messages: Sequence[Any], system: Json, tools: Json) -> ClientMessages:
    """Read what a client sends. Raises InvalidMessage, or InvalidEvent with the index of the message at fault."""
    given: list[ClientEvent] = []
    for index, group in enumerate(FORMATS[form].reader(messages)):
        given += [ClientEvent(parse_event(event, index, native=True), index) for event in group]
    leading = tuple(takewhile(lambda one: one.draft.type is EventType.SYSTEM_PROMPT, given))
    events = tuple(given[len(leading) :])
    prompts = (*([] if system is None else _prompt(form, system)), *leading)
    listed = None if tools is None else ClientEvent(parse_event({"type": "tools", "content": tools}), None)
    return ClientMessages(form, len(messages), events, tuple(links(one.draft for one in events)), prompts, listed)


def _prompt(form: str, system: Json) -> Sequence[ClientEvent]:
    """The system prompt that a request has beside its messages; none if it is blank."""
    event: Mapping[str, Json] = {"type": "system.prompt", "content": system}
    if form == anthropic_parts.NAME:
        event = {**event, "content": anthropic_parts.unmarked(system), "native": native(form, head={})}
    draft = parse_event(event, native=True)
    return () if is_blank(draft.content) else (ClientEvent(draft, None),)

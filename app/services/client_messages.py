"""A client's complete messages as events, with the hashes by which they are found in a log.

Of what is in the log already nothing more than its hash is looked at: it was checked when it was appended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.log.chain import Link, links, prompt_said, tools_said
from app.core.log.events import Draft, EventType, Json
from app.core.log.parse import parse_event, tool_definitions
from app.core.render.formats import FORMATS, anthropic_parts, gemini_parts
from app.core.render.formats.parts import is_blank, native


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event, and the index of the message that it came from; None if it came from the request's other fields."""

    draft: Draft
    index: int | None


@dataclass(frozen=True, slots=True)
class ClientMessages:
    """The complete messages of a client.

    `raw` are the events of the conversation as they were read and not checked yet, `indices` those of their messages,
    and `links` name the chained ones. `prompts` and `tools` are what goes in front, if the client says so. `count` is
    the number of messages.
    """

    count: int
    raw: Sequence[Mapping[str, Json]]
    indices: Sequence[int]
    links: Sequence[Link]
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
        """The events behind so many links; none if no link is among them, since reasoning goes with what follows it.

        Raises InvalidEvent with the index of the message at fault.
        """
        if links_known >= len(self.links):
            return ()
        first = self.links[links_known - 1].place + 1 if links_known else 0
        rest = zip(self.raw[first:], self.indices[first:], strict=True)
        return tuple(ClientEvent(parse_event(event, index, native=True), index) for event, index in rest)


def read_messages(form: str, messages: Sequence[Any], system: Json, tools: Json) -> ClientMessages:
    """Read what a client sends. Raises InvalidMessage, or InvalidEvent for the system prompt or the tools."""
    groups = FORMATS[form].reader(messages)
    raw = [event for group in groups for event in group]
    indices = [index for index, group in enumerate(groups) for _ in group]
    leading = next((n for n, event in enumerate(raw) if event["type"] != EventType.SYSTEM_PROMPT), len(raw))
    prompts = [ClientEvent(parse_event(raw[n], indices[n], native=True), indices[n]) for n in range(leading)]
    raw, indices = raw[leading:], indices[leading:]
    beside = () if system is None else _prompt(form, system)
    listed = None if tools is None else ClientEvent(parse_event({"type": "tools", "content": tools}), None)
    return ClientMessages(len(messages), raw, indices, links(raw), (*beside, *prompts), listed)


def _prompt(form: str, system: Json) -> Sequence[ClientEvent]:
    """The system prompt that a request has beside its messages; none if it is blank."""
    event: Mapping[str, Json] = {"type": "system.prompt", "content": system}
    if form == anthropic_parts.NAME:
        event = {**event, "content": anthropic_parts.unmarked(system), "native": native(form, head={})}
    if form == gemini_parts.NAME and not isinstance(system, str):
        parts = gemini_parts.read_parts({"parts": system}, 0)
        event = {**event, "content": list(map(gemini_parts.typed, parts)), "native": native(form, head={})}
    draft = parse_event(event, native=True)
    return () if is_blank(draft.content) else (ClientEvent(draft, None),)

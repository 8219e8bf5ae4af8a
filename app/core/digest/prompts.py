"""Messages in the user's name that no user wrote: prompts that a command or a skill loaded, and the words of hooks."""

from collections.abc import Iterable, Iterator

from app.core.digest.sentences import is_loaded, prompt_command
from app.core.log.event import Event
from app.core.log.events import EventType


def own_messages(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the users' messages without those that a program wrote in their name."""
    is_prompt = False
    for event in events:
        if event.type is not EventType.USER_MESSAGE or (is_prompt and not prompt_command(event.text)):
            is_prompt = False
        else:
            is_prompt = bool(prompt_command(event.text))
            if not is_loaded(event.text):
                yield event

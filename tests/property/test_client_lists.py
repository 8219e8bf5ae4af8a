"""Reading only the new messages of a client's list gives the same as reading all, whatever the client changed."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.errors import InvalidEvent, InvalidMessage
from app.resources.reconcile.messages import ClientList, ClientMessages, ListReader
from tests.property.conversations import TURNS, conversations
from tests.support.examples import examples

TENANT = UUID(int=1)
SYSTEMS = {"gemini": {"role": "system", "parts": [{"text": "s"}]}}
SYSTEM = {"role": "system", "content": "s"}
ODD: list[Any] = [{"role": "nobody", "content": "x"}, {"role": "user", "content": 5}, {"role": "developer"}, 7]

forms = pytest.mark.parametrize("form", TURNS)
some = settings(
    max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@st.composite
def changed_lists(draw: st.DrawFn, form: str, messages: list[Any]) -> list[Any]:
    """Draw a client's next list: more, fewer, or changed messages, other prompts, or invalid ones."""
    system = SYSTEMS.get(form, SYSTEM)
    place = draw(st.integers(0, len(messages)))
    match draw(st.sampled_from(["more", "more", "same", "fewer", "edit", "system", "prompt", "odd"])):
        case "more":
            return [*messages, *draw(conversations(form))]
        case "fewer":
            return messages[:place] or messages
        case "edit":
            return [*messages[:place], *draw(conversations(form)), *messages[place + 1 :]]
        case "system":
            return [*messages[:place], system, *messages[place:]]
        case "prompt":
            return [system, *messages]
        case "odd":
            return [*messages[:place], draw(st.sampled_from(ODD)), *messages[place:]]
    return messages


def outcome(read: Any, *given: Any) -> Any:
    """Return everything that a read provides, or its error."""
    try:
        found: ClientMessages = read(*given)
        own = (found.count, list(found.indices), list(found.links), found.prompts, found.tools)
    except (InvalidMessage, InvalidEvent) as error:
        return type(error), str(error), error.fields
    behind: list[Any] = []
    for number in range(len(found.links) + 1):
        try:
            behind.append(found.events_after(number))
        except InvalidEvent as error:
            behind.append((type(error), str(error), error.fields))
    return own, behind


@forms
@some
@given(data=st.data())
def test_a_fast_read_equals_a_full_read(form: str, data: st.DataObject) -> None:
    reader = ListReader()
    messages: list[Any] = data.draw(conversations(form))
    for _ in range(data.draw(st.integers(2, 6))):
        sent = ClientList(form, messages, data.draw(st.sampled_from([None, "s", " "])), None)
        assert outcome(reader.read, TENANT, "s", sent) == outcome(sent.read)
        messages = data.draw(changed_lists(form, messages))


@forms
@some
@given(data=st.data())
def test_only_new_messages_of_a_growing_list_are_read(form: str, data: st.DataObject) -> None:
    reader = ListReader()
    messages = [*data.draw(conversations(form)), *data.draw(conversations(form))]
    first = reader.read(TENANT, "s", ClientList(form, messages))
    assert first.unread == 0
    more = reader.read(TENANT, "s", ClientList(form, [*messages, messages[-1]]))
    assert (more.unread, len(more.raw)) == (len(first.raw), len(more.indices) - len(first.indices))
    other = reader.read(TENANT, "other", ClientList(form, messages))
    assert other.unread == 0


def test_memory_of_recent_lists_is_bounded() -> None:
    reader = ListReader(kept_max=5)
    one, other = (ClientList("openai", [{"role": "user", "content": text}] * 2) for text in "ab")
    unread = [reader.read(TENANT, "s", sent).unread for sent in (one, one, other, other, one)]
    assert unread == [0, 2, 0, 2, 0]

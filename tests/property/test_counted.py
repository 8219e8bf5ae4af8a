"""All text that is sent is counted, in every format, unknown fields included."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.log.appends import parse_batch
from app.core.render.formats import FORMATS
from app.core.render.formats.fit import prepare
from app.core.tokens.counter import FORMULAS, HEURISTIC, REQUEST_TOKENS, Counter, Estimator
from app.core.tokens.scales import AREA
from tests.property.builders import definitions
from tests.property.conversations import conversations
from tests.support import recount
from tests.support.examples import examples
from tests.support.written_requests import write_in
from tests.unit.render.formats.layouts import layout_of

some = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
forms = pytest.mark.parametrize("form", ["openai", "openai-responses", "anthropic", "gemini"])
counters = pytest.mark.parametrize("estimator", [HEURISTIC, FORMULAS["ceil4"]], ids=lambda one: one.name)

SECRETS = st.one_of(
    st.text("abc ", min_size=300, max_size=600),
    st.lists(st.text("xyz{}", min_size=100, max_size=200), min_size=1, max_size=3),
    st.builds(
        lambda text: {"deep": [{"type": "text", "text": text}, {"more": text}]},
        st.text("pq\n", min_size=100, max_size=300),
    ),
)
FIELDS = st.sampled_from(["annotations", "citations", "signature", "x_vendor", "detail", "content", "text", "mime"])
AUTHORED = st.sampled_from([{}, {}, {"author": "reviewer-" * 20}])
MESSAGE_FIELDS = st.sampled_from(["x_vendor", "annotations", "name"])


@st.composite
def conversations_with_extras(draw: st.DrawFn, form: str) -> list[dict[str, Any]]:
    """Draw a conversation whose messages, parts, calls and results have many unknown fields."""
    messages: list[dict[str, Any]] = json.loads(json.dumps(draw(conversations(form))))
    places = [place for message in messages for place in _places(message)]
    for place in draw(st.lists(st.sampled_from(places), min_size=1, max_size=4)):
        names = MESSAGE_FIELDS if "role" in place or "call_id" in place else FIELDS
        name, secret = draw(names), draw(SECRETS)
        if name != "content" or place.get("type") != "tool_result":  # a result's content is known, and must be valid
            place.setdefault(name, secret)
    return messages


def _places(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of a message in which a vendor may have fields of its own."""
    found = [message] if "role" not in message or "tool_calls" not in message else []
    for name in ("content", "output"):
        for part in message[name] if isinstance(message.get(name), list) else ():
            found += [part, *(part[f] for f in ("source", "image_url") if isinstance(part.get(f), dict))]
            found += part["content"] if isinstance(part.get("content"), list) else ()
    for part in message.get("parts", ()):
        found += [part, *(part[f] for f in ("functionCall", "functionResponse") if f in part)]
    for call in message.get("tool_calls", ()):
        found += [call, call[call["type"]]]
    return found


@counters
@forms
@some
@given(data=st.data())
def test_i13_no_field_is_sent_that_is_not_counted(form: str, estimator: Estimator, data: st.DataObject) -> None:
    messages = data.draw(conversations_with_extras(form))
    tools = [{**tool, "x_vendor": data.draw(SECRETS)} for tool in data.draw(definitions)]
    counter = Counter(estimator, AREA)
    events = [event | data.draw(AUTHORED) for event in FORMATS[form].read(messages)]
    prefix, *drafts = parse_batch([{"type": "tools", "content": tools}, *events], native=True)
    estimate = sum(counter.event(draft) for draft in drafts) + REQUEST_TOKENS
    for other in FORMATS:
        layout = prepare(layout_of(events), other).layout
        request = write_in(other, layout).request
        assert estimate >= recount.count_tokens(request, estimator.count)
        request = write_in(other, replace(layout, tools=tuple(tools), tools_seq=1)).request
        assert estimate + counter.event(prefix) >= recount.count_tokens(request, estimator.count)

"""Attributes of immutable values that are computed on first use."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event

from app.core.log import event
from app.core.log.event import first_line, lazy
from app.core.log.events import Draft, EventType


@dataclass(frozen=True)
class Value:
    compute: Callable[[], object]

    @lazy
    def found(self) -> object:
        """The computed value."""
        return self.compute()


def test_a_value_is_computed_once_and_kept_in_the_instance() -> None:
    computed: list[object] = []

    def compute() -> object:
        computed.append(object())
        return computed[-1]

    value = Value(compute)
    assert value.found is value.found
    assert len(computed) == 1
    assert vars(value)["found"] is value.found
    assert value == Value(value.compute)


def test_a_value_set_in_the_instance_is_not_computed() -> None:
    value = Value(object)
    vars(value).update(found="known")
    assert value.found == "known"


def test_the_class_gives_the_attribute_itself_with_its_description() -> None:
    assert Value.found.__doc__ == "The computed value."


def test_two_instances_do_not_wait_for_one_another() -> None:
    begun, released = Event(), Event()

    def slow() -> str:
        begun.set()
        released.wait(60)
        return "slow"

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: Value(slow).found)
        try:
            assert begun.wait(10)
            second = threads.submit(lambda: Value(lambda: "quick").found)
            assert second.result(timeout=10) == "quick"
            assert not first.done()
        finally:
            released.set()
        assert first.result() == "slow"


def test_concurrent_threads_get_the_same_value() -> None:
    both = [Event(), Event()]

    def meet() -> object:
        mine = both[0] if not both[0].is_set() else both[1]
        mine.set()
        both[1].wait(10)
        return object()

    value = Value(meet)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: value.found)
        assert both[0].wait(10)
        second = threads.submit(lambda: value.found)
        assert first.result() is second.result()


def test_a_derived_value_is_computed_once_for_each_event() -> None:
    asked: list[int] = []

    def tool_chars(event: Event) -> int:
        asked.append(event.seq)
        return len(event.tool or "")

    call = event.Event(7, EventType.TOOL_CALL, 1, 10, tool="grep")
    assert [call.derive(tool_chars), call.derive(tool_chars), replace(call, tool="rg").derive(tool_chars)] == [4, 4, 2]
    assert asked == [7, 7]


def test_the_first_line_of_a_listing_is_its_first_with_text() -> None:
    draft = Draft(EventType.TOOL_RESULT, call_id="c", content="   370→\n   371→def heights() -> None:\n")
    assert first_line(draft) == "371→def heights() -> None:"
    assert first_line(Draft(EventType.TOOL_RESULT, call_id="c", content="\n42\n")) == "42"
    assert first_line(Draft(EventType.TOOL_RESULT, call_id="c", content="370→\n")) is None

"""Counting: by kind of text, images by the vendors' rules, nothing left out."""

import base64
import struct
import zlib
from dataclasses import dataclass, field, replace

import pytest

from app.core.log.event import Event
from app.core.log.events import Draft, EventType
from app.core.plan.state.stubs import shortened_for
from app.core.tokens.counter import CALL_TOKENS, HEURISTIC, MESSAGE_TOKENS, Counter, TextKind, estimator_for
from app.core.tokens.models import profile
from app.core.tokens.scales import AREA, ImageRule, dimensions

COUNTER = Counter(HEURISTIC, AREA)


def png(width: int, height: int) -> str:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return base64.b64encode(
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    ).decode()


def test_tool_output_is_denser_than_prose() -> None:
    text = "x" * 3000
    assert HEURISTIC.count(text, TextKind.PROSE) == 1000
    assert HEURISTIC.count(text, TextKind.RESULT) == HEURISTIC.count(text, TextKind.DATA) == 1154


@dataclass(frozen=True)
class Counting:
    """An estimator that records the texts it counts."""

    name: str = "counting"
    margin: float = 0.0
    asked: list[str] = field(default_factory=list, hash=False, compare=False)

    def count(self, text: str, kind: TextKind) -> int:
        self.asked.append(text)
        return len(text)


def test_the_same_text_of_ours_is_counted_once() -> None:
    estimator = Counting()
    counter = Counter(estimator, AREA)
    assert [counter.message("a summary"), counter.result("a summary"), counter.message("a summary")] == [13, 19, 13]
    assert estimator.asked == ["a summary", "a summary"]


def test_scripts_of_many_bytes_take_more() -> None:
    assert HEURISTIC.count("漢" * 30, TextKind.PROSE) == 30
    assert HEURISTIC.count("", TextKind.PROSE) == 0


def test_wrapping_is_included() -> None:
    assert COUNTER.event(Draft(EventType.USER_MESSAGE, content="x" * 30)) == 10 + MESSAGE_TOKENS
    assert COUNTER.event(Draft(EventType.TOOL_RESULT, call_id="c", content="x" * 26)) == 10 + CALL_TOKENS
    call = Draft(EventType.TOOL_CALL, call_id="c", tool="x" * 13, arguments={"a": 1})
    assert COUNTER.event(call) == 5 + 3 + CALL_TOKENS
    assert COUNTER.event(Draft(EventType.TURN_START)) == 0


def test_every_part_counts() -> None:
    thinking = Draft(
        EventType.ASSISTANT_MESSAGE, content=[{"type": "thinking", "thinking": "x" * 30, "signature": "s"}]
    )
    signature = HEURISTIC.count('{"signature":"s"}', TextKind.DATA)
    assert COUNTER.event(thinking) == 10 + signature + MESSAGE_TOKENS
    unknown = Draft(EventType.USER_MESSAGE, content=[{"type": "sculpture", "marble": "x" * 100}])
    assert COUNTER.event(unknown) > 100 / 2.6


def test_other_fields_of_a_text_part_count() -> None:
    """The text's other fields count, whatever their types."""
    text = {"type": "text", "text": "x" * 30}
    for beside in ("y" * 300, ["y" * 300], {"type": ["y"], "text": "y" * 300}, [{"type": {}, "content": "y" * 300}]):
        assert COUNTER.part({**text, "x_own": beside}, TextKind.PROSE) > 10 + 300 / 2.6
        assert COUNTER.part({"type": "box", "content": [text], "x_own": beside}, TextKind.PROSE) > 10 + 300 / 2.6
        assert COUNTER.part({"type": "box", "content": [{"type": beside}]}, TextKind.PROSE) > 300 / 2.6
    assert COUNTER.part(text, TextKind.PROSE) == 10


def test_arguments_count_in_the_form_that_takes_more() -> None:
    """Text that is no JSON object is sent unchanged to its own provider, and within an object to the others."""
    lines = "\n" * 300
    assert COUNTER.arguments({}) == COUNTER.arguments(None) == COUNTER.arguments("") == 1
    assert COUNTER.arguments("[" + lines) > 600 / 2.6
    assert COUNTER.arguments('{"a": 1}') == COUNTER.estimator.count('{"a": 1}', TextKind.DATA)


def test_a_shortened_result_counts_with_what_it_keeps_of_its_own_shape() -> None:
    native = {"format": "anthropic", "part": {"x_own": "y" * 300}}
    body = {"content": "line\n" * 1000, "native": native}
    event = Event(3, EventType.TOOL_RESULT, 1, 5000, call_id="c", call_seq=2, body=body)
    plain = replace(event, body={"content": body["content"]})
    own, bare = (shortened_for(one, 100, COUNTER, "r", "r") for one in (event, plain))
    assert own is not None and bare is not None
    assert own.tokens == bare.tokens + COUNTER.native(native) > bare.tokens + 300 / 2.6


@pytest.mark.parametrize(
    ("rule", "size", "detail", "tokens"),
    [
        (AREA, (1000, 1000), None, 1334),
        (AREA, (200, 200), None, 54),
        (AREA, (8000, 8000), None, 1600),
        (AREA, None, None, 1600),
        (ImageRule("tiles", 85, 170), (1024, 1024), "high", 765),
        (ImageRule("tiles", 85, 170), (2048, 4096), "high", 1105),
        (ImageRule("tiles", 85, 170), (4096, 8192), "low", 85),
        (ImageRule("patches"), (1024, 1024), None, 1024),
        (ImageRule("patches", factor=1.62), (1024, 1024), None, 1659),
        (ImageRule("patches"), None, None, 1536),
    ],
)
def test_images_cost_what_the_vendors_publish(
    rule: ImageRule, size: tuple[int, int] | None, detail: str | None, tokens: int
) -> None:
    """The tile and patch cases are the worked examples of OpenAI's guide, the area case Anthropic's."""
    assert rule.tokens(size, detail) == tokens


def test_image_sizes_are_read_from_their_headers() -> None:
    gif = base64.b64encode(b"GIF89a" + struct.pack("<HH", 320, 200) + b"\0" * 20).decode()
    jpeg = base64.b64encode(
        b"\xff\xd8\xff\xe0\x00\x10" + b"\0" * 14 + b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 480, 640) + b"\0" * 12
    ).decode()
    webp = base64.b64encode(
        b"RIFF\0\0\0\0WEBPVP8X" + b"\0" * 8 + (99).to_bytes(3, "little") + (49).to_bytes(3, "little") + b"\0" * 8
    ).decode()
    assert dimensions(png(640, 480)) == (640, 480)
    assert dimensions(gif) == (320, 200)
    assert dimensions(jpeg) == (640, 480)
    assert dimensions(webp) == (100, 50)
    assert dimensions("bm9uc2Vuc2U=") is None
    assert dimensions("not base64!") is None


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(750, 100)}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + png(750, 100)}},
        {"type": "input_image", "image_url": "data:image/png;base64," + png(750, 100)},
        {"type": "image", "data": png(750, 100), "mime": "image/png"},
    ],
)
def test_an_image_counts_the_same_in_every_providers_shape(part: dict) -> None:
    assert COUNTER.part(part, TextKind.PROSE) == 100


def test_models_find_their_profile() -> None:
    assert profile("gpt-4o-2024-08-06").encoding == "o200k_base"
    assert profile("openai/gpt-4-turbo").encoding == "cl100k_base"
    assert profile("us.anthropic.claude-sonnet-4-5-20250929-v1:0").scale == "claude-3"
    assert profile("some-local-model").encoding is None
    assert profile(None).encoding is None


def test_a_missing_vocabulary_shows_in_the_name() -> None:
    assert estimator_for(profile("gpt-4o"), {}).name == "heuristic:o200k_base-missing"
    assert estimator_for(profile("claude-sonnet-4-5"), {}).name == "heuristic:o200k_base-missing"
    assert estimator_for(profile("some-local-model"), {}).name == "heuristic"

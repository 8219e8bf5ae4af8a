"""Usage as the API takes it, and the addresses of the pages that are opened."""

import pytest

from palimpsest_tools.recordings.recording import RecordedUsage
from palimpsest_tools.replay.facts import usage_in
from palimpsest_tools.replay.opening import page_url


def test_usage_is_counted_as_the_format_counts_it() -> None:
    usage = RecordedUsage(1000, 600, 300, 20)
    assert usage_in(usage, excludes_cache=True) == {
        "input_tokens": 100,
        "cache_read_tokens": 600,
        "cache_write_tokens": 300,
        "output_tokens": 20,
    }
    assert usage_in(usage, excludes_cache=False)["input_tokens"] == 1000
    assert usage_in(RecordedUsage(7), excludes_cache=True) == {"input_tokens": 7}


@pytest.mark.parametrize(
    ("sessions", "path"),
    [(["replay-1"], "sessions/replay-1"), (["a:b@c"], "sessions/a:b@c"), (["a", "b"], ""), ([None], "")],
)
def test_the_page_is_that_of_a_single_session(sessions: list[str | None], path: str) -> None:
    assert page_url("http://here/", sessions) == f"http://here/ui/{path}"

"""The cover: the summaries in it, those that are shown, and those that are merged."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest

from app.core.memory.cover import Summary, clip, contiguous, due_merge
from app.core.policy.groups import Summarize

LEVEL = Summarize()
FAN_IN = 3
"""Number of summaries of a level that are merged, by default five in a row less the two that stay."""


def oldest(**rules: object) -> Summarize:
    return Summarize(view="clip", scope="oldest", **rules)  # type: ignore[arg-type]


def middle(**rules: object) -> Summarize:
    return Summarize(view="clip", scope="middle", **rules)  # type: ignore[arg-type]


def summary(from_seq: int, to_seq: int, depth: int = 0, tokens: int = 10) -> Summary:
    return Summary(f"{from_seq}-{to_seq}", from_seq, to_seq, depth, tokens, "text", events=to_seq - from_seq + 1)


def row(count: int, depths: Sequence[int] | None = None, tokens: int = 10) -> list[Summary]:
    """Return adjacent summaries of one event each."""
    return [summary(seq, seq, (depths or [0] * count)[seq - 1], tokens) for seq in range(1, count + 1)]


def merge_once(cover: list[Summary], rules: Summarize) -> list[Summary]:
    """Return the cover after one merge."""
    due = due_merge(cover, rules)
    at = cover.index(due[0])
    one = summary(due[0].from_seq, due[-1].to_seq, max(s.depth for s in due) + 1)
    return [*cover[:at], one, *cover[at + len(due) :]]


def seqs(summaries: Sequence[Summary]) -> list[int]:
    return [one.from_seq for one in summaries]


def test_a_cover_is_the_run_without_a_hole_from_seq_1() -> None:
    assert contiguous([]) == ()
    assert contiguous([summary(2, 5)]) == ()
    found = contiguous([summary(8, 9), summary(4, 5), summary(1, 3)])
    assert [(one.from_seq, one.to_seq) for one in found] == [(1, 3), (4, 5)]


@pytest.mark.parametrize("rules", [oldest(), middle()])
def test_s3_08_at_six_no_and_at_seven_yes(rules: Summarize) -> None:
    assert [bool(due_merge(row(count), rules)) for count in range(10)] == [False] * 7 + [True] * 3


def test_s3_08_the_threshold_follows_what_is_shown() -> None:
    assert due_merge(row(4), oldest(clip_first=1, clip_last=1)) == ()
    assert due_merge(row(5), oldest(clip_first=1, clip_last=1)) != ()
    assert due_merge(row(8), oldest(buffer=4)) == ()


def test_s3_09_the_oldest_are_all_but_the_last_ones() -> None:
    assert seqs(due_merge(row(7), oldest())) == [1, 2, 3, 4, 5]


def test_s3_09_the_middle_is_what_a_clipped_view_leaves_out() -> None:
    cover = row(7)
    assert seqs(due_merge(cover, middle())) == [3, 4, 5]
    assert due_merge(cover, middle()) == clip(cover, middle()).omitted


def test_s3_09_one_level_above_the_deepest_and_nothing_uncovered() -> None:
    after = merge_once(row(7, depths=[1, 0, 0, 1, 0, 0, 0]), oldest())
    assert [(one.from_seq, one.to_seq, one.depth, one.events) for one in after] == [
        (1, 5, 2, 5),
        (6, 6, 0, 1),
        (7, 7, 0, 1),
    ]
    assert contiguous(after) == tuple(after)


def test_s3_11_many_are_clipped_to_the_first_and_the_last() -> None:
    shown = clip(row(5), oldest())
    assert (seqs(shown.first), seqs(shown.omitted), seqs(shown.last)) == ([1, 2], [3], [4, 5])
    assert seqs(shown.shown) == [1, 2, 4, 5]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_s3_11_few_are_all_shown(count: int) -> None:
    shown = clip(row(count), oldest())
    assert (len(shown.shown), shown.omitted) == (count, ())


def test_all_are_shown_where_the_view_says_so() -> None:
    assert len(clip(row(20), LEVEL).shown) == 20


def test_the_latest_replaces_all_others() -> None:
    rules = Summarize(view="latest")
    assert (seqs(clip(row(3), rules).shown), clip([], rules).shown) == ([3], ())
    assert (seqs(due_merge(row(3), rules)), due_merge(row(1), rules)) == ([1, 2, 3], ())


def test_only_the_lowest_level_that_is_too_full_gives_up_its_oldest() -> None:
    assert due_merge(row(4), LEVEL) == ()
    assert seqs(due_merge(row(5), LEVEL)) == [1, 2, 3]
    assert seqs(due_merge(row(10, depths=[1] * 5 + [0] * 5), LEVEL)) == [6, 7, 8]
    assert seqs(due_merge(row(8, depths=[1] * 5 + [0] * 3), LEVEL)) == [1, 2, 3]


def test_a_cover_that_is_too_large_is_merged_at_any_number() -> None:
    cover = row(4, tokens=1_000)
    assert due_merge(cover, LEVEL, 4_000) == ()
    assert seqs(due_merge(cover, LEVEL, 3_999)) == [1, 2]
    assert due_merge(row(3, tokens=9_000), LEVEL, 1_000) == ()  # one alone would not become shorter


def test_live_summaries_grow_with_the_logarithm_of_the_chunks_and_each_is_read_once_a_level() -> None:
    chunks = 10_000
    cover: list[Summary] = []
    reads: Counter[int] = Counter()
    """Number of times that a chunk, or a summary that contains it, was read to be merged."""
    sources = 0
    for seq in range(1, chunks + 1):
        cover.append(summary(seq, seq))
        while due := due_merge(cover, LEVEL):
            sources += len(due)
            reads.update(range(due[0].from_seq, due[-1].to_seq + 1))
            cover = merge_once(cover, LEVEL)
        levels = math.log(seq, FAN_IN) + 1
        assert len(cover) <= 4 * levels
    assert [one.from_seq for one in cover[1:]] == [one.to_seq + 1 for one in cover[:-1]]
    assert (cover[0].from_seq, cover[-1].to_seq) == (1, chunks)
    assert max(reads.values()) <= math.log(chunks, FAN_IN)
    assert sources <= chunks * FAN_IN / (FAN_IN - 1)  # a summary as short as a chunk's is a third of its span

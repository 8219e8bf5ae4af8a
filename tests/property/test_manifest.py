"""The codec of manifests reads its own values unchanged, and those that earlier versions wrote."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.record import (
    VERSION,
    AppliedCalibration,
    CallManifest,
    RecordedBreakpoint,
    UnknownVersion,
    from_json,
    to_json,
)
from app.core.record.evictions import Eviction
from app.http.fields import YEARS
from app.store import texts
from tests.support.examples import examples

SOURCES = ("tools", "system", "summaries", "history", "current_turn", "ephemeral")
counts = st.integers(0, 2**31 - 1)
seqs = st.integers(1, 2**63 - 1)
FIRST, LAST = datetime(YEARS[0], 1, 2), datetime(YEARS[1] - 1, 12, 30)
"""The range of a caller's clock: at the ends of the calendar a time is moved by a microsecond, on purpose."""
words = st.text(max_size=30)  # with NUL and lone surrogates, which agents do send
parts = st.fixed_dictionaries({"type": st.just("text"), "text": words})
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
evictions = st.lists(st.builds(Eviction, seqs, seqs, words, words, words, counts), max_size=3).map(tuple)
manifests = st.builds(
    CallManifest,
    window=counts,
    window_stated=st.booleans(),
    reserve=counts,
    injection_reserve=counts,
    estimator=words,
    outside=counts,
    outside_by=st.none() | st.sampled_from(("call", "policy", "session", "learned")),
    by_source=st.fixed_dictionaries(dict.fromkeys(SOURCES, counts)),
    prefix_sha256=st.binary(min_size=32, max_size=32),
    breakpoints=st.lists(st.builds(RecordedBreakpoint, words, st.none() | counts, st.none() | counts)).map(tuple),
    hour=st.booleans(),
    unfit=evictions,
    evictions=st.none() | evictions,
    summaries=counts,
    calibration=st.none() | st.builds(AppliedCalibration, st.floats(0.1, 10), st.floats(0, 1), counts),
    redactions=counts,
    ttl_pruning=st.sampled_from(("disabled", "cold", "pruned")) | words,
    notice=st.none() | words,
    stalled=st.none() | words,
    now=st.none() | st.datetimes(FIRST, LAST, timezones=zones),
    layers=st.dictionaries(st.sampled_from(("sources", "announce")), counts),
    recall=st.booleans(),
    cache_last=st.booleans(),
    injections=st.lists(st.tuples(words, words | st.lists(parts, max_size=3)), max_size=3).map(tuple),
)


@settings(max_examples=examples(300))
@given(manifests)
def test_a_written_value_is_read_unchanged(made_with: CallManifest) -> None:
    document = to_json(made_with)
    assert document["version"] == VERSION
    assert from_json(texts.loads(texts.dumps(document))) == made_with


@settings(max_examples=examples(100))
@given(manifests)
def test_records_from_before_there_were_versions_are_read_as_the_same_value(made_with: CallManifest) -> None:
    document = to_json(made_with)
    del document["version"]
    assert from_json(document) == made_with


EVICTION = {
    "from_seq": 3,
    "to_seq": 9,
    "disposition": "stubbed",
    "reducer": "retention",
    "reason": "keep_last",
    "tokens_saved": 700,
}
OLDEST: dict[str, Any] = {
    "window": 8_000,
    "reserve": 100,
    "injection_reserve": 0,
    "estimator": "heuristic",
    "by_source": dict.fromkeys(SOURCES, 7),
    "prefix_sha256": "ab" * 32,
    "breakpoint_kinds": [],
}
OLDEST_VALUE = CallManifest(
    window=8_000, reserve=100, estimator="heuristic", by_source=dict.fromkeys(SOURCES, 7), prefix_sha256=b"\xab" * 32
)
SUMMARY = {"id": "s", "from_seq": 1, "to_seq": 2, "depth": 0, "tokens": 5}
POINTS = (RecordedBreakpoint("system"), RecordedBreakpoint("tail"))


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ({}, {}),
        ({"evictions": []}, {"evictions": ()}),
        ({"evictions": [EVICTION]}, {"evictions": (Eviction(3, 9, "stubbed", "retention", "keep_last", 700),)}),
        ({"summaries": [SUMMARY, SUMMARY]}, {"summaries": 2}),
        ({"summaries": 2}, {"summaries": 2}),
        ({"breakpoint_kinds": ["system", "tail"]}, {"breakpoints": POINTS}),
        ({"now": "2026-01-02T03:04:05+00:00"}, {"now": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}),
        ({"injections": [{"name": "hook", "content": "x"}]}, {"injections": (("hook", "x"),)}),
    ],
)
def test_older_shapes_are_read(said: dict[str, Any], value: dict[str, Any]) -> None:
    wanted = {name: getattr(OLDEST_VALUE, name) for name in OLDEST_VALUE.__dataclass_fields__} | value
    assert from_json(json.loads(json.dumps(OLDEST | said))) == CallManifest(**wanted)


def test_stated_and_learned_outside_tokens_are_distinguished() -> None:
    said = [
        CallManifest(outside=9, outside_by=by).stated_outside for by in ("call", "policy", "session", "learned", None)
    ]
    assert said == [9, 9, 9, None, None]


def test_a_later_version_is_refused() -> None:
    with pytest.raises(UnknownVersion, match=f"version {VERSION + 1}"):
        from_json({**OLDEST, "version": VERSION + 1})

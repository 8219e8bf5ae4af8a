"""Stored values are read unchanged, sealed or not, and nothing unsealed is taken for sealed."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import StoreUnavailable
from app.core.log.events import canonical_json
from app.store import texts
from app.store.texts import sealing_with
from app.wings.sealing.service import KEY_BYTES, Sealer

SEALER = Sealer(os.urandom(KEY_BYTES))
words = st.one_of(
    st.text(),
    st.text(st.sampled_from('\ufdd0=0d{}":\\u\x00\ud800 sealed')),
    st.sampled_from(["\ufdd0sealed", '{"\ufdd0sealed":"AAAA"}', "\ufdd0sealedAAAA"]),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), words),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)
documents = st.dictionaries(st.one_of(words, st.sampled_from(["path", "turn_id"])), values, max_size=5)


@given(values)
def test_values_are_restored(value: object) -> None:
    for sealer in (None, SEALER):
        with sealing_with(sealer):
            stored = texts.dumps(value)
            assert texts.loads(stored) == value
            assert "\\u0000" not in stored and "\\ud" not in stored.replace("\\\\", "")
    with pytest.raises(StoreUnavailable):
        texts.loads(stored)
    with sealing_with(Sealer(os.urandom(KEY_BYTES))), pytest.raises(StoreUnavailable):
        texts.loads(stored)


@given(documents)
def test_readable_members_stay_next_to_the_sealed_ones(document: dict[str, object]) -> None:
    with sealing_with(SEALER):
        stored = texts.dumps(document, clear=("path", "turn_id"))
        assert texts.loads(stored) == document
        assert texts.restore(stored) == canonical_json(document)
    beside = json.loads(stored)
    assert set(beside) - {"\ufdd0sealed"} == {"path", "turn_id"} & set(document)
    with sealing_with(None):
        plain = texts.dumps(document)
    for name in {"path", "turn_id"} & set(document):
        assert beside[name] == json.loads(plain)[name]


@given(words.filter(lambda one: one.isprintable()))
def test_texts_are_restored(said: str) -> None:
    with sealing_with(SEALER):
        assert texts.open_text(texts.seal_text(said)) == said
    assert texts.open_text(texts.seal_text(said)) in (said, said.removeprefix("\ufdd0"))

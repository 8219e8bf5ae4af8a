"""Plain values are stored in a form that Postgres accepts and read unchanged; sealed ones are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import StoreUnavailable
from app.store import texts

words = st.one_of(st.text(), st.text(st.sampled_from('\ufdd0=0d{}":\\u\x00\ud800 sealed')))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), words),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)


@given(values)
def test_plain_values_are_restored(value: object) -> None:
    stored = texts.dumps(value)
    assert texts.loads(stored) == value
    escapes = stored.replace("\\\\", "")
    assert "\\u0000" not in escapes and "\\ud" not in escapes


def test_sealed_contents_are_refused_without_a_cipher() -> None:
    for read, stored in ((texts.loads, '{"\ufdd0sealed":"AAAA"}'), (texts.open_text, "\ufdd0sealedAAAA")):
        with pytest.raises(StoreUnavailable, match="no key to open them"):
            read(stored)

"""Rules of users that a later message revokes."""

import pytest

from app.core.memory.digest.sentences import rules_with_reversals

RULE = "Always keep the gauge table sorted by harbour."


@pytest.mark.parametrize(
    ("later", "back"),
    [
        (["whoops, put it back"], True),
        (["never mind"], True),
        (["Actually, let's leave the gauge table sorted by time."], True),
        (["The sorted gauge table is no longer needed."], True),
        (["Now add the estuary.", "never mind"], False),
        (["Actually, keep the colours of the chart."], False),
        (["Put the harbour's name in the title."], False),
    ],
)
def test_a_revoked_rule_quotes_the_message_that_revoked_it(later: list[str], back: bool) -> None:
    rule = next(iter(rules_with_reversals([RULE, *later])))
    assert rule == (f'{RULE} (taken back later: "{later[-1]}")' if back else RULE)


def test_text_about_a_rules_end_is_no_rule() -> None:
    assert list(rules_with_reversals(["You must not print the old header, it is no longer needed."])) == []
    assert list(rules_with_reversals(["Never push the branch.", "Never push to main either."])) == [
        "Never push the branch.",
        "Never push to main either.",
    ]

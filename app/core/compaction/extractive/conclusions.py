"""Decisions, findings and finished work in the texts of an assistant."""

from collections.abc import Collection, Sequence
from typing import Final

from app.core.compaction.extractive.sections import SectionLine
from app.core.compaction.extractive.sentences import Sentence, distinct
from app.core.compaction.extractive.statements import findings, finished_statements, newest_diagnoses, worth_of
from app.core.lexicon.words import content_words

TELLING_WORDS: Final = 4
"""The number of content words below which a sentence says nothing alone."""


def decisions(
    texts: Sequence[tuple[int, str]], turns: Sequence[int], reports: Collection[int] = ()
) -> Sequence[SectionLine]:
    """Return decisions and findings with their reasons, the best first; of equals the newest first.

    `texts` are texts with their seqs, `turns` the seqs of the users' messages, `reports` those of the texts that end a
    turn. A diagnosis that a later one of its turn replaced is left out.
    """
    found = [(seq, worth, text) for seq, whole in texts for worth, text in findings(whole, is_report=seq in reports)]
    kept = newest_diagnoses(found, turns)
    worths = {(seq, text): worth for seq, worth, text in kept}
    chosen = _distinct_lines([(seq, text) for seq, _, text in kept])
    return sorted(chosen, key=lambda line: -worths[line.seq, line.text])


def finished_work(texts: Sequence[tuple[int, str]], reports: Collection[int] = ()) -> Sequence[SectionLine]:
    """Return the sentences that only report finished work: those of reports first, then the newest."""
    order = sorted(texts, key=lambda text: (text[0] in reports, text[0]), reverse=True)
    return _distinct_lines([(seq, one) for seq, text in order for one in finished_statements(text)])


def ranked(lines: Sequence[SectionLine]) -> Sequence[SectionLine]:
    """Return the decisions of earlier summaries, the best first; of equals the newest first."""
    return sorted(lines, key=lambda line: (-worth_of(line.text), -line.seq))


def _distinct_lines(found: Sequence[tuple[int, str]]) -> Sequence[SectionLine]:
    """Return the sentences with enough content words; only the first of similar ones."""
    candidates = [Sentence(text, seq, content_words(text)) for seq, text in found]
    return [SectionLine(one.text, one.seq) for one in distinct(candidates) if len(one.words) >= TELLING_WORDS]

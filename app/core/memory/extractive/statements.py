"""The sentences of an agent's prose with their headings, and the recognition of findings among them.

The rules depend on form and English words, not on an agent or a subject.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.memory.digest.sentences import own_words, plain, sentences

STATEMENT_CHARS_MAX: Final = 420
"""The length above which a sentence is left out, since sentences are never cut."""
LEAD_CHARS_MAX: Final = 120

HEADING: Final = re.compile(r"\s{0,4}#{1,6} |\s{0,4}\*\*[^*\n]{1,100}\*\*:?\s{0,4}$")
LABEL_CHARS_MAX: Final = 80
_ITEM: Final = re.compile(r"(\s{0,12})(?:[-*•]|\d{1,3}[.)])\s|\s{0,4}\*\*\d{1,2}[.)]")
_NUMBER: Final = re.compile(r"^\d{1,3}[.)] ")
_NO_PROSE: Final = re.compile(r"\s{0,20}(?:[>|+│╭╰├└]|\d+[→|]|-{3,}|[-=*_]{3,}$)")
_REVIEW: Final = re.compile(
    r"^\W{0,8}(?:(?:code )?review (?:of|for)\b|(?:PR|MR|pull request)\b[^\n]{0,20}\breview\b|code review\b"
    r"|review:? (?:PR|MR|pull request|#))",
    re.I | re.M,
)
"""A heading over a review, whose text describes others' work."""
_SUPPOSED: Final = re.compile(
    r"\b(?:timeline|scenarios?|examples?|options?|alternatives?|propos\w+|recommend\w*|suggest\w*|ideas?|would|could"
    r"|if|should|will|approach|plans?|steps?|pros|cons|benefits?|flow|sequence|mockup|questions?|consider|tasks?|next"
    r"|phase|to-?do|needs? to|need|want|let me|let['’]s|i['’]ll|behaviou?r|prompt)\b",
    re.I,
)
"""Words of a heading over hypothetical or planned content."""
_REPORTS: Final = re.compile(
    r"\b(?:done|chang(?:es?|ed)|fix(?:e[sd]|ed)?|complet\w+|implement(?:ed|ation)|added|updated|created|removed"
    r"|mov(?:ed|es)|refactor\w*|summary|result\w*|accomplish\w+|what (?:i|we|was)|here['’]s what|resolved|committed"
    r"|pushed|files?|tests?|(?:i|we)['’]ve|progress|status|so far)\b",
    re.I,
)
"""Words of a heading over finished work."""
_GENERAL: Final = re.compile(
    rf"{_REPORTS.pattern}"
    r"|^(?:there (?:is|are)|(?:the |my |some )?(?:key|main|important|other|minor|notes?|findings?|details?))\b",
    re.I,
)
"""Words of a line before a list that says nothing about its items."""
_OF_DECISIONS: Final = re.compile(r"\bdecisions?\b", re.I)
"""Words of a heading over decisions."""
_FAULTS: Final = re.compile(
    r"\b(?:issues?|problems?|bugs?|faults?|concerns?|regressions?|gaps?|missing|to fix)\b"
    r"(?!.{0,40}\b(?:fixed|resolved|addressed|solved)\b)",
    re.I,
)
"""Words of a heading over faults."""
_CAUSE: Final = (
    r"root cause|the (?:real |actual |main |core )?(?:issue|problem|bug|cause|reason|culprit) (?:is|was|here)"
)
_REASONED: Final = re.compile(
    r"\b(?:because|since (?!last|then|yesterday)|so that|(?<=, )so (?:we|it|they|the|this)|even though|due to"
    r"|turns out|caused by"
    rf"|{_CAUSE}|the fix (?:is|was)|(?:which|this|that) means|otherwise|that['’]s why|this is why|reason:)",
    re.I,
)
"""Words that join a statement and its reason."""
_CHOSEN: Final = re.compile(
    r"\b(?:in order to|to (?:avoid|prevent)|without (?:need|hav|break|requir)ing|instead of|rather than"
    r"|decid(?:ed|ing)|decision|chose|went with|opted|revert(?:ed|ing)|prefer(?:red)?"
    r"|trade-?off|no longer"
    r"|(?:can|could|does|did|do|is|are|was|were)(?:n['’]t| not) (?:work|import|support|possible|supported))\b",
    re.I,
)
"""Words of a choice, or of an attempt that did not work."""
_OURS: Final = re.compile(r"\b(?:i|we|our)\b", re.I)
_FOUND: Final = re.compile(
    r"\b(?:found|see|identified|discovered|understand) (?:it|(?:the|another|an?|one more) (?:\w+ )?"
    r"(?:bugs?|issue|problem|cause|culprit|reason|gap))\b(?=[^,;]{0,60}$)",
    re.I,
)
"""A sentence that announces a finding."""
_PROBLEM: Final = re.compile(
    r"(?<!will )(?<!to )\b(?:fails|(?:is|are) (?:still )?failing|(?:does|do|wo)n['’]t (?:compile|build|pass|work))\b"
    r"[^.;:]{0,60}\b(?:because|due to)\b"
    r"|\b(?:(?:i|we)(?:['’]ve)? (?:now |just )?(?:hit|have|ran into|created|introduced)|there(?:['’]s| is)"
    r"|(?:this|that|it) (?:creates|causes)) (?:an?|another|the) (?:\w+ )?"
    r"(?:(?:import|dependency) cycle|(?:circular|cyclic) (?:import|dependency|reference)|deadlock)\b",
    re.I,
)
"""Words of a present problem with its reason."""
_SETTLED: Final = re.compile(
    r"\b(?:fix\w*|resolv\w+|solv\w+|avoid\w*|prevent\w*|previously|expected|intended|intentional\w*|by design|was|were)"
    r"\b",
    re.I,
)
"""Words of a problem that is over, or is none."""
_DIAGNOSIS: Final = re.compile(rf"\b(?:{_CAUSE}|(?:are|is|was|were) failing)\b", re.I)
_HEDGED: Final = re.compile(
    r"\b(?:likely|maybe|might|may|could|would|(?<!i )should|probably|perhaps|seems?|appears?|presumably|consider"
    r"|i(?:['’]d)? (?:think|suspect|guess|suggest|recommend|propose)|if you"
    r"|unused|no longer (?:needed|used|needs?|required)|the (?:\w+ )?fix is to [^.]{1,80}? or)\b"
    r"|^\W{0,4}(?:if|options?|question|example|suppose|imagine|say|i can)\b|\?\W{0,4}$",
    re.I,
)
"""Words of a sentence that supposes, proposes or asks, or remarks on code that is no longer needed."""
_RETRACTION: Final = re.compile(r"\W{0,4}(?:(?:but|oh) )?(?:actually|wait|hmm+|on second thought)\b", re.I)
"""The beginning of a sentence that takes the one before it back."""
_VERB: Final = (
    r"(?:implemented|added|created|fixed|updated|changed|removed|moved|renamed|refactored|committed|pushed|merged"
    r"|wrote|written|rewrote|extracted|replaced|introduced|deleted|installed|configured|completed|finished|resolved"
    r"|reduced|increased|simplified|redesigned|restored|reverted|rebased|amended|staged|strengthened|booked"
    r"|cancell?ed|confirmed|sent)"
)
_CHOICE: Final = re.compile(
    r"\b(?:in order to|to (?:avoid|prevent)|instead of|rather than|decid(?:ed|ing)|decision|chose|went with|opted"
    r"|revert(?:ed|ing)|prefer(?:red)?|suggest\w*|recommend\w*|trade-?off"
    r"|the (?:\w+ )?(?:fix|solution|approach) (?:is|was)|should|leave it"
    r"|(?:i|we)(?:['’]ll| (?:will|added|kept|left|use|keep)))\b"
    rf"|(?:^|[:–—-] )\W{{0,4}}{_VERB}\b",
    re.I,
)
"""Words of a choice, or of work that was done."""
_FAULTY: Final = re.compile(r"\b(?:is|are|was|were) (?:now )?\w+ing\b.{0,200}\b(?:instead of|rather than)\b", re.I)
"""Words on a program that does another thing than it should."""
_DONE: Final = re.compile(
    r"^\W{0,4}(?:(?:i|we)(?:['’]ve| have)?(?: now| also| just| successfully)? "
    rf"|(?:[`*]{{1,3}}[^`*]{{1,80}}[`*]{{1,3}}|[\w./:]{{1,80}})(?: \([^)]{{0,80}}\))? ?[-–—:→] (?:now )?)?{_VERB}\b"
    rf"|\b(?:has been|have been|(?:is|are) now) (?:now )?{_VERB}\b"
    r"|\b(?:is|are) (?:now )?(?:complete|done|in place|fixed|implemented|removed|resolved|updated)\b",
    re.I,
)
"""Words of a sentence that reports finished work; not `was removed`, which may be anyone's work at any time."""
_SOLVED: Final = re.compile(
    rf"{_DONE.pattern}|\b(?:was|were) (?:now )?{_VERB}\b|\b(?:is|are) (?:committed|pushed)\b", re.I
)
"""Words of a sentence after which an earlier problem may be solved."""
_PASSED: Final = re.compile(
    r"^\W{0,4}(?:[\w`-]+ ){0,4}(?:tests?|lint|checks?|build|everything) (?:\w+ ){0,3}(?:pass(?:e[sd])?|succeeds?)\b",
    re.I,
)
"""Words of a sentence that reports a check, which may fail again later."""
_DOUBT: Final = re.compile(
    r"\b(?:but|no|not|none|never|\w+n['’]t|fail\w*|errors?|appears?|seems?|should|would|could|might|may|if|when|need(?:s|ed)?"
    r"|missing|still|yet|only|until|except|wrong|issue|problem|bug|successfully|feedback)\b|!$",
    re.I,
)
"""Words of a sentence that reports more, or less, than finished work, or praises it."""
_MENDED: Final = re.compile(
    r"\b(?:fix(?:ed)?|resolved|addressed)\b[^.,;:]{0,80}?\b(?:bugs?|issues?|problems?|errors?|failures?)\b", re.I
)
"""A problem that is named because it was mended."""
_LOOKS: Final = re.compile(
    r"\W{0,4}(?:now |first,? |next,? )?(?:let me|i['’]ll|i need to) (?:\w+ )?(?:check|look|examine|read|see|verify"
    r"|search|find|understand|investigate|view|review|analy[sz]e|explore)\b",
    re.I,
)
INTENT: Final = re.compile(
    r"\b(?:(?:i|we)['’]ll|(?:i|we) will|let me(?! know)|let['’]s|(?:i|we)['’](?:m|re) (?:going to|about to)|going to"
    r"|now i|(?:i|we) (?:need|have|want) to|(?:i|we) should(?! (?:leave|keep|not))|next,"
    r"|continu(?:e|ing) (?:to|with|\w+ing))|^\W{0,4}(?:now |next )?need to\b"
    r"|^\W{0,4}(?:now|next),? (?:add|build|change|check|commit|create|delete|edit|fix|implement|make|move|push|refactor"
    r"|remove|rename|replace|run|test|update|verify|write)\b",
    re.I,
)
"""Words of a sentence about an intent."""
_NEXT: Final = re.compile(
    rf"{INTENT.pattern}|\b(?:next|to-?do|remaining|remains?(?= to\b|:)|still (?:need|have|to)|pending)\b", re.I
)
_POINTS_BACK: Final = re.compile(
    r"\W{0,4}(?:(?:but |and |so |also )?(?:this|that|these|those|it|they|otherwise|which|the same|reason)\b"
    r"(?! (?:file|test|function))|(?:but|and|so|however|instead(?! of)|therefore|also|then)\b)",
    re.I,
)
"""The beginning of a sentence that depends on the one before it."""
_TURN: Final = (
    r"(?:(?:now|ok(?:ay)?|good|great|perfect|excellent|right|so|and|but|first|next|then|also|alright|wait|hmm|actually"
    r"|again|got it|i see|sure|yes|done|finally|fine)\b[ ,.!:;–—-]{0,4})*"
)
_NARRATION: Final = re.compile(
    rf"\W{{0,4}}{_TURN}(?:let me(?! know)|let['’]s|i['’]ll|i will|(?:now )?i (?:need|have|want) to"
    r"|i['’]m (?:going|about) to|i should(?! (?:leave|keep|not|have))|time to)\b[^\n]*",
    re.I,
)
"""A sentence that announces the agent's next action."""
_EMPTY: Final = re.compile(
    rf"\W{{0,4}}{_TURN}(?:(?:good|great|excellent) (?:question|call|point|catch|idea|news)"
    r"|you['’]re (?:absolutely |totally )?right|i (?:see|understand|have)(?: \w+){0,5}|found it|makes sense|all good"
    r"|no problem)?\W{0,4}",
    re.I,
)
"""A sentence without content."""
_REFUTES: Final = re.compile(
    r"\s{0,4}(?:no\b(?! (?:problem|worries|need))|nope\b|wrong\b|that(?:['’]s| is) (?:wrong|not|incorrect|no good)"
    r"|(?:it|this|that)(?:['’]s| is)? still\b)"
    r"|\bstill (?:see|show|fail|display|get|happen|broken|not|is|the same|does)\w{0,3}\b"
    r"|\b(?:does|did)n['’]?t (?:work|help|fix)\b|\bnot (?:correct|working|true)\b|\bno good\b",
    re.I,
)
"""A user's words that reject the agent's last report."""
_REFUTED_CHARS: Final = 400


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence without emphasis, its headings and lead-in, and whether it is an item of a list.

    `parent` is the item that a nested item stands under, if short.
    """

    text: str
    lead: str
    is_item: bool
    parent: str = ""

    @property
    def label(self) -> str:
        """The parent item, else the short line before the list; without it an item may be misread."""
        lead = _NUMBER.sub("", self.lead.split(" / ")[-1]).rstrip(":—– ") if self.is_item else ""
        return self.parent or ("" if _GENERAL.search(lead) or len(lead) > LABEL_CHARS_MAX else lead)

    @property
    def is_supposed(self) -> bool:
        """Whether its heading covers hypothetical or planned content."""
        return _SUPPOSED.search(self.lead) is not None

    @property
    def is_reported(self) -> bool:
        """Whether its heading covers finished work."""
        return _REPORTS.search(self.lead) is not None and not (self.is_supposed or self.is_fault)

    @property
    def is_fault(self) -> bool:
        """Whether it is an item under a heading over faults."""
        return self.is_item and _FAULTS.search(self.lead) is not None


def statements(text: str) -> Sequence[Statement]:
    """Return the sentences of an agent's text without code, quotes and tables; none if it reviews others' work."""
    words = own_words(text)
    return [] if _REVIEW.search(words) else list(_statements(words))


def _statements(words: str) -> Iterator[Statement]:
    heading = lead = ""
    parents: list[tuple[int, str]] = []
    for line in words.split("\n"):
        if not line.strip() or _NO_PROSE.match(line):
            continue
        if HEADING.match(line):
            heading, lead, parents = plain(line), "", []
            continue
        item = _ITEM.match(line)
        if item is None:
            lead, parents = "", []
        depth = len(item[1] or "") if item else 0
        parents = [one for one in parents if one[0] < depth]
        parent = parents[-1][1] if parents else ""
        for one in sentences(line):
            sentence = plain(one)
            lead_in = " / ".join(filter(None, (heading, lead)))[-LEAD_CHARS_MAX:]
            yield Statement(sentence, lead_in, item is not None, parent)
            if sentence.endswith(":") and not item:
                lead = sentence
        if item:
            label = plain(_ITEM.sub("", line, count=1)).rstrip(":—– ")
            parents.append((depth, label if len(label) <= LABEL_CHARS_MAX else ""))


def findings(text: str, *, ends_turn: bool = False) -> Iterator[tuple[float, str]]:
    """Yield the statements of a text that give a decision or a finding with its reason, each with its worth.

    A statement that depends on its neighbour is joined to it.
    """
    items = statements(text)
    for at, one in enumerate(items):
        worth = worth_of(one.text) or (one.is_item and 2.0 * bool(_OF_DECISIONS.search(one.lead)))
        is_retracted = at + 1 < len(items) and _RETRACTION.match(items[at + 1].text)
        if not worth or one.is_supposed or is_narration(one.text) or _HEDGED.search(one.text) or is_retracted:
            continue
        whole = _join_neighbour(items, at)
        if whole and not INTENT.search(whole):
            label = one.label if whole.startswith(one.text) else ""
            yield worth + ends_turn - one.is_item * 0.5, f"{label}: {whole}" if label else whole


def worth_of(text: str) -> float:
    """Return the worth of a statement as a decision or a finding; 0 without a reason, a choice or a cause."""
    if _REASONED.search(text) or _FOUND.search(text):
        return 2.0
    return (1.5 if _OURS.search(text) else 1.0) if _CHOSEN.search(text) else 0.0


def is_observation(text: str) -> bool:
    """Return whether a finding is an observation without a choice."""
    return _CHOICE.search(_FAULTY.sub("", text)) is None


def finished_statements(text: str) -> Iterator[str]:
    """Yield the statements of a text that report finished work and nothing else; not those that a check passed."""
    yield from (
        f"{one.parent}: {one.text}" if one.parent else one.text
        for one in statements(text)
        if _DONE.search(one.text) and _is_certain(one)
    )


def _is_certain(one: Statement) -> bool:
    """Return whether a statement expresses no doubt or intent, and stands outside descriptions and plans."""
    if _DOUBT.search(_MENDED.sub("", one.text)) or INTENT.search(one.text):
        return False
    described = one.is_supposed or one.is_fault or (one.is_item and one.lead and not one.is_reported)
    return not described and not one.text.endswith((":", "?")) and len(one.text) <= STATEMENT_CHARS_MAX


def problems(text: str) -> Sequence[str]:
    """Return the statements that report a present problem with its reason, without those before finished work."""
    items = statements(text)
    done = (at for at, one in enumerate(items) if _reports_end(one) and not _DOUBT.search(one.text))
    rest = items[max(done, default=-1) + 1 :]
    return [
        _with_reason(rest, at)
        for at, one in enumerate(rest)
        if _PROBLEM.search(one.text)
        and not (one.is_supposed or _HEDGED.search(one.text) or _SETTLED.search(one.text))
        and len(one.text) <= STATEMENT_CHARS_MAX
    ]


def _with_reason(items: Sequence[Statement], at: int) -> str:
    """Return a statement, with the next one if it ends with a colon."""
    text = items[at].text
    if not text.endswith(":"):
        return text
    reason = items[at + 1].text if at + 1 < len(items) else ""
    is_whole = reason and not reason.endswith((":", "?")) and not is_narration(reason)
    return f"{text} {reason}" if is_whole and len(text) + len(reason) < STATEMENT_CHARS_MAX else f"{text[:-1]}."


def reports_success(text: str) -> bool:
    """Return whether a text reports finished work, or a check that passed, without a doubt."""
    return any(_reports_end(one) and _is_certain(one) for one in statements(text))


def _reports_end(one: Statement) -> bool:
    return (_SOLVED.search(one.text) or _PASSED.search(one.text)) is not None


def states_next_step(sentence: str, text: str) -> bool:
    """Return whether a sentence of a text states a next step, other than a look, outside a report on finished work."""
    if not _NEXT.search(sentence) or _LOOKS.match(sentence):
        return False
    return not any(one.is_reported and one.text == plain(sentence) for one in statements(text))


def _join_neighbour(items: Sequence[Statement], at: int) -> str:
    """Return a statement with the one that it needs; empty if they are too long, or the other one is missing."""
    text = items[at].text
    if text.endswith(":") or _FOUND.search(text):
        if at + 1 == len(items) or is_narration(items[at + 1].text) or _HEDGED.search(items[at + 1].text):
            return ""
        text = f"{text} {items[at + 1].text}"
    elif points_back(text):
        if not at or is_narration(items[at - 1].text) or _HEDGED.search(items[at - 1].text):
            return ""
        text = f"{items[at - 1].text} {text}"
    return text if len(text) <= STATEMENT_CHARS_MAX and not text.endswith(":") and "…" not in text else ""


def points_back(sentence: str) -> bool:
    """Return whether a sentence depends on the one before it."""
    return _POINTS_BACK.match(sentence) is not None


def is_diagnosis(text: str) -> bool:
    """Return whether a sentence states a cause, as agents do several times before they find the right one."""
    return _DIAGNOSIS.search(text) is not None


def names_cause(text: str) -> bool:
    """Return whether a finding names or announces a fault's cause, which stays true after the fault is mended."""
    return is_diagnosis(text) or _FOUND.search(text) is not None


def is_narration(sentence: str) -> bool:
    """Return whether a sentence only announces the agent's next action, without a reason, or has no content."""
    announces = _NARRATION.fullmatch(sentence) and not _REASONED.search(sentence)
    return bool(announces or _EMPTY.fullmatch(sentence))


def has_content(text: str) -> bool:
    """Return whether a text has a sentence with content, apart from headings."""
    words = "\n".join(line for line in own_words(text).split("\n") if not HEADING.match(line))
    items = [one for one in sentences(words) if any(map(str.isalpha, one))]
    return any(not is_narration(one) and not one.rstrip("*_ ").endswith(":") for one in items)


def refutes(message: str) -> bool:
    """Return whether a user rejects the agent's last report."""
    return _REFUTES.search(message[:_REFUTED_CHARS]) is not None

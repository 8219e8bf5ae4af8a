"""The search for instructions in tool output that a summary repeats as its own words.

Without this guard, anyone who can write a file or page that an agent reads could instruct the agent through its memory.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

SEGMENT_CHARS_MAX: Final = 80
"""The characters after the matched words that are compared, at most to the end of the sentence."""

FOUND_MAX: Final = 100
"""The number of found instructions that are searched for the next one, which is then not reported again."""
WORDS_MIN: Final = 3
"""The number of words below which an instruction continues on the next line."""

_INSTRUCTION: Final = re.compile(
    r"\b(?:"
    r"(?:ignore|disregard|forget|override|bypass)\s{1,9}(?:(?:all|any|every|each|of|the|your|these|those|my)\s{1,9}){0,4}"
    r"(?:previous|prior|above|earlier|preceding|former|existing|system|safety)\s{1,9}"
    r"(?:\w{1,20}\s{1,9})?(?:instructions?|prompts?|messages?|rules?|context|directions?|guidelines?|constraints?)"
    r"|you\s{1,9}(?:must|should|shall|will|have\s{1,9}to|need\s{1,9}to)\s{1,9}now\b"
    r"|you\s{1,9}are\s{1,9}now\s{1,9}(?:an?|acting|operating|allowed|authorized|free|required|instructed)\b"
    r"|you\s{1,9}are\s{1,9}no\s{1,9}longer\b"
    r"|from\s{1,9}now\s{1,9}on,?\s{1,9}(?:you|the|always|never|do|respond|answer|reply|act)\b"
    r"|your\s{1,9}(?:new|real|actual|next|only)\s{1,9}(?:task|goal|job|role|mission|instructions?|objective)\b"
    r"|new\s{1,9}(?:system\s{1,9})?(?:instructions?|prompt)\s{0,3}:"
    r"|the\s{1,9}(?:next\s{1,9})?(?:agent|assistant|ai|summarizer)\s{1,9}(?:must|shall|has\s{1,9}to)\b"
    r"|(?:attention|important|note)\s{0,3}(?:to|for)?\s{0,3}(?:the\s{1,9}|all\s{1,9}|any\s{1,9})?"
    r"(?:ai|llm|agents?|assistants?)\b"
    r"|(?:do\s{1,9}not|don['’]t|never)\s{1,9}(?:tell|inform|mention|reveal|show|report|disclose)\s{1,9}"
    r"(?:\w{1,20}\s{1,9}){0,3}(?:the\s{1,9})?user\b"
    r"|without\s{1,9}(?:asking|telling|informing)\s{1,9}the\s{1,9}user\b"
    r"|(?:run|execute)\s{1,9}(?:the\s{1,9}following|this)\b"
    r"|(?:send|post|upload|forward|e-?mail|exfiltrate|leak|print|reveal)\s{1,9}(?:\w{1,20}\s{1,9}){0,4}"
    r"(?:api\s{1,9}keys?|tokens?|secrets?|credentials?|passwords?|private\s{1,9}keys?|environment\s{1,9}variables|system\s{1,9}prompt)"
    r"\s{1,9}(?:to|in|into|at|via)\b"
    r"|(?:include|keep|preserve|repeat|copy|put)\s{1,9}(?:\w{1,20}\s{1,9}){0,4}in\s{1,9}"
    r"(?:the|your|any|every|all|each)\s{1,9}(?:\w{1,20}\s{1,9})?(?:summary|summaries|memory)\b"
    r"|when\s{1,9}(?:you\s{1,9})?summari[sz](?:e|ing)\b"
    r")",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(
    r"\"[^\"\n]{1,600}\"|“[^”\n]{1,600}”|«[^»\n]{1,600}»|„[^“\n]{1,600}“|‘[^’\n]{1,600}’"
    r"|(?<!\w)'[^'\n]{1,600}'(?!\w)|^\s{0,8}>[^\n]*$",
    re.MULTILINE,
)
_END: Final = re.compile(r"[.!?](?=\s|$|[\"'”’*`])|\n")
_MARKS: Final = str.maketrans({"*": None, "`": None, "’": "'", "“": '"', "”": '"'})


def repeated_instructions(text: str, untrusted: Sequence[str]) -> tuple[str, ...]:
    """Return the instructions in the `untrusted` texts that `text` repeats outside quotation marks, in order.

    The comparison ignores case, emphasis and kinds of white space. Takes time linear in the texts, times the number of
    distinct instructions.
    """
    own_words = _normal(_QUOTED.sub(lambda quoted: '""' if _INSTRUCTION.search(quoted[0]) else quoted[0], text))
    if not own_words:
        return ()
    instructions = dict.fromkeys(instruction for source in untrusted for instruction in _instructions(source))
    found: list[str] = []
    for instruction in instructions:
        if instruction in own_words and not any(instruction in longer for longer in found[:FOUND_MAX]):
            found.append(instruction)
    return tuple(found)


def _instructions(source: str) -> Iterator[str]:
    """Yield the instructions in a text, each from the matched words to the end of the sentence or line."""
    for match in _INSTRUCTION.finditer(source):
        limit = match.end() + SEGMENT_CHARS_MAX
        ends = (end.start() for end in _END.finditer(source, match.end(), limit))
        whole = next((at for at in ends if _is_complete(source[match.start() : at])), None)
        if whole is None and limit < len(source):  # cut at a space: a broken word at the end would match nothing
            whole = max(source.rfind(" ", match.end(), limit), match.end())
        yield _normal(source[match.start() : whole])


def _is_complete(part: str) -> bool:
    """Return whether a part is long enough for an instruction, and not only its introduction, which ends in a colon."""
    return len(part.split()) >= WORDS_MIN and not part.rstrip().endswith(":")


def _normal(text: str) -> str:
    return " ".join(text.translate(_MARKS).casefold().split()).strip(" .!:;,-\"'")

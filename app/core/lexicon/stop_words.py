"""English words that say nothing of what a text is about."""

from typing import Final

_COMMON: Final = (
    "a about after all also am an and any are as at be because been before being but by can could did do does doing "
    "for from get got had has have having he her here him his how i if in into is it its just let me more my no not "
    "now of off on only or our out over own she should so some that the their them then there these they this those "
    "to too up very was we were what when where which while who why will with would you your yourself"
)
_GRAMMAR: Final = (
    "above again below between both don down during each further hers herself himself isn itself ll most myself nor "
    "once other ours ourselves re s same such t than theirs themselves through under until ve whom whose yours"
)
_CONVERSATION: Final = (
    "done i'd i'll i'm i've isn't it's let's like need ok one see that's there's us we'll we're yes you're"
)
STOP_WORDS: Final = frozenset((*_COMMON.split(), *_GRAMMAR.split()))
"""What no search looks for."""
SMALL_TALK: Final = frozenset((*_COMMON.split(), *_CONVERSATION.split()))
"""What does not make a sentence matter. With all stop words in it, summaries of dialogues keep less of the evidence."""

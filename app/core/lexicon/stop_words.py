"""English words that carry little meaning."""

from typing import Final

_STOP_WORDS: Final = (
    "a about above after again all also am an and any are as at be because been before being below between both "
    "but by can could did do does doing don down during each for from further get got had has have having he her "
    "here hers herself him himself his how i if in into is isn it its itself just let ll me more most my myself "
    "no nor not now of off on once only or other our ours ourselves out over own re s same she should so some "
    "such t than that the their theirs them themselves then there these they this those through to too under "
    "until up ve very was we were what when where which while who whom whose why will with would you your yours "
    "yourself"
)
_CONVERSATION: Final = (
    "done i'd i'll i'm i've isn't it's let's like need ok one see that's there's us we'll we're yes you're"
)
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
"""Words that no search uses."""
SMALL_TALK: Final = STOP_WORDS | frozenset(_CONVERSATION.split())
"""Stop words and conversational fillers: a search may use a filler, but it makes no sentence important."""

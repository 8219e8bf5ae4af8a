"""Stems of English words: a question seldom uses the same forms of words as the text that answers it."""

from functools import lru_cache
from typing import Final

from snowballstemmer.english_stemmer import EnglishStemmer

_FORMS: Final = (
    "go went gone; buy bought; see saw seen; take took taken; make made; get got gotten; give gave given; find found;"
    "tell told; think thought; feel felt; leave left; meet met; run ran; begin began begun; write wrote written;"
    "speak spoke spoken; choose chose chosen; teach taught; catch caught; bring brought; win won; lose lost; pay paid;"
    "send sent; spend spent; build built; sell sold; hold held; keep kept; sleep slept; eat ate eaten;"
    "drink drank drunk; drive drove driven; ride rode ridden; fly flew flown; swim swam swum; sing sang sung;"
    "wear wore worn; break broke broken; grow grew grown; know knew known; throw threw thrown; draw drew drawn;"
    "fall fell fallen; come came; become became; hear heard; say said; stand stood; understand understood; sit sat;"
    "fight fought; wake woke woken; steal stole stolen; forget forgot forgotten; show shown; hide hid hidden;"
    "bite bit bitten; blow blew blown; deal dealt; dream dreamt; learn learnt; lead led; lend lent; light lit;"
    "mean meant; ring rang rung; rise rose risen; seek sought; shake shook shaken; shoot shot; strike struck;"
    "swear swore sworn; tear tore torn; child children; man men; woman women; foot feet; tooth teeth; mouse mice;"
    "person people; life lives; wife wives; knife knives; half halves; leaf leaves; shelf shelves"
)
_IRREGULAR: Final = {form: base for base, *forms in (group.split() for group in _FORMS.split(";")) for form in forms}


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the stem of a lower-case English word, an irregular form first replaced by its base.

    A word with any character other than ASCII letters is returned unchanged.
    """
    if not word.isascii() or not word.isalpha():
        return word
    # A new stemmer for each word: a stemmer holds the word as state, and searches run in several threads.
    stemmed: str = EnglishStemmer().stemWord(_IRREGULAR.get(word, word))
    return stemmed

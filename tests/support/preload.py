"""Last preload of the fork server: it loads the vocabularies and freezes all objects.

A collection in a fork would otherwise visit, and so copy, them.
"""

import gc

from app import tokenizers
from app.runtime.settings import Settings

tokenizers.load(Settings().tiktoken_cache_dir)
gc.collect()
gc.freeze()

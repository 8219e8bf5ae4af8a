"""Last preload of the fork server: the slowest parts of a start, and then no object that a fork would look through.

A fork that collects garbage visits, and so copies, all objects of the fork server; frozen ones are left alone.
"""

import gc

from app import tokenizers
from app.runtime.settings import Settings

tokenizers.load(Settings().tiktoken_cache_dir)
gc.collect()
gc.freeze()

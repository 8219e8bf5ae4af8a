"""Preload for the fork server: importing it loads the tokenizers' vocabularies, the slowest part of a start."""

from app import tokenizers
from app.runtime.settings import Settings

tokenizers.load(Settings().tiktoken_cache_dir)

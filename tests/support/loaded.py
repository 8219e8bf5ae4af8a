"""Importing this loads the vocabularies, which is most of what a start takes: for what is forked afterwards."""

from app import tokenizers
from app.settings import Settings

tokenizers.load(Settings().tiktoken_cache_dir)

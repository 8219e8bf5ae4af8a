"""tiktoken's encodings from verified local files. Never touches the network."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
import tiktoken

from app.core.tokens import Tokenizer

# tiktoken names a vocabulary's file by the SHA-1 of its address and checks it by this SHA-256 (tiktoken_ext).
FILES: Final[Mapping[str, tuple[str, str]]] = {
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}
RUN_CHARS_MAX: Final = 1_000
"""Longer runs without white space (or of nothing else) are counted in pieces: merging the byte pairs of one unbroken
run takes more than linear time, and a megabyte of one letter would hold up the server."""
_LONG_RUN: Final = re.compile(rf"\S{{{RUN_CHARS_MAX + 1}}}|\s{{{RUN_CHARS_MAX + 1}}}")
_PIECES: Final = re.compile(rf"(?:\S{{1,{RUN_CHARS_MAX}}}\s{{0,{RUN_CHARS_MAX}}})|\s{{1,{RUN_CHARS_MAX}}}")


class TiktokenTokenizer:
    """Counts with one tiktoken encoding."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self._encoding = encoding

    @property
    def name(self) -> str:
        """The encoding's name."""
        return self._encoding.name

    def count(self, text: str) -> int:
        """Tokens of `text`, special tokens in it taken as ordinary text.

        Cutting a long run can add a token at the cut, never lose one.
        """
        if _LONG_RUN.search(text) is None:
            return len(self._encoding.encode_ordinary(text))
        return sum(len(self._encoding.encode_ordinary(piece)) for piece in _PIECES.findall(text))


def load(folder: Path) -> Mapping[str, Tokenizer]:
    """The encodings whose vocabularies are in `folder` and intact. Those that are not are logged and left out."""
    log = structlog.get_logger()
    found: dict[str, Tokenizer] = {}
    for name, (file, sha256) in FILES.items():
        path = folder / file
        if not path.is_file():
            log.warning("vocabulary missing", encoding=name, folder=str(folder), fallback="heuristic")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            log.warning("vocabulary corrupt", encoding=name, folder=str(folder), fallback="heuristic")
        else:
            found[name] = TiktokenTokenizer(_encoding(name, folder))
    return found


def _encoding(name: str, folder: Path) -> tiktoken.Encoding:
    """tiktoken fetches only what its cache folder lacks, and deletes only what fails its check: this passed it."""
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    return tiktoken.get_encoding(name)

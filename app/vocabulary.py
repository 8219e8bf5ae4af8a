"""The vocabularies of tiktoken's encodings: their files, and where the server looks for them.

Only the standard library is imported: the build of the distribution imports this module, too.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
INSIDE: Final = Path(__file__).parent / "vocabularies"
"""The folder in an installed wheel."""
ENVIRONMENT: Final = Path(sys.prefix) / "share" / "palimpsest" / "tiktoken"
"""The folder of an environment that runs a source folder: one for all of its checkouts."""
FOLDER: Final = INSIDE if INSIDE.is_dir() else ENVIRONMENT


def fault(path: Path, sha256: str) -> str | None:
    """Return why the file is not the one with this hash; None if it is."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "unreadable"
    return None if hashlib.sha256(data).hexdigest() == sha256 else "corrupt"

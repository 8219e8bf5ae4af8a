"""Arguments by which tools name what they work on."""

from typing import Final

FILES: Final = ("path", "file_path", "filepath", "file", "filename", "notebook_path")
"""One file."""
FILE_LISTS: Final = ("paths", "files")
ADDRESSES: Final = ("uri", "url")

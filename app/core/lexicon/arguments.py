"""Names of tool arguments that hold files or addresses."""

from typing import Final

FILES: Final = ("path", "file_path", "filepath", "file", "filename", "notebook_path")
"""Arguments that hold one file."""
FILE_LISTS: Final = ("paths", "files")
ADDRESSES: Final = ("uri", "url")

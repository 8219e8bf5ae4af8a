"""The types of content parts of all providers."""

from typing import Final

TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
REASONING_PARTS: Final = frozenset({"reasoning", "thinking", "redacted_thinking"})
IMAGE_PARTS: Final = frozenset({"image", "image_url", "input_image", "computer_screenshot"})
BLOB_PARTS: Final = frozenset({"inlineData", "inline_data", "fileData", "file_data"})
"""Gemini's types of images and files; the type is also the field that holds the data."""

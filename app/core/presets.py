"""The read-only policies that come with the server, by name."""

from collections.abc import Mapping
from typing import Final

from app.core.policy import DEFAULT, Policy

PRESETS: Final[Mapping[str, Policy]] = {"default": DEFAULT}

"""The options with which a replay asks for its contexts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.core.log.events import Json
from app.recordings.checks import parse_json, require_object
from app.recordings.load import decode
from app.recordings.recording import Recording


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy with its name from the command line; `policy` is what the server gets, a name or a document."""

    name: str
    policy: str | Mapping[str, Json]


def named_policy(given: str) -> NamedPolicy:
    """The policy of a name, or of a file: anything with a slash or the ending `.json` is a file.

    Raises OSError if the file cannot be read, MalformedRecording if it holds no JSON object.
    """
    if "/" not in given and not given.endswith(".json"):
        return NamedPolicy(given, given)
    return NamedPolicy(given, require_object(parse_json(decode(Path(given).read_bytes())), "a policy"))


@dataclass(frozen=True, slots=True)
class Options:
    """What contexts are asked for; None leaves the choice to the server (for `format`, to the recording)."""

    format: str | None = None
    max_tokens: int | None = None
    share: float | None = None
    model: str | None = None
    policy: str | Mapping[str, Json] | None = None

    def format_for(self, recording: Recording) -> str:
        """The format of a recording's contexts."""
        return self.format or recording.format or "openai"

    def context(self, recording: Recording, window_tokens: int | None) -> dict[str, Json]:
        """The body of a request for a context."""
        body = {"format": self.format_for(recording), "max_tokens": window_tokens, "model": self.model}
        return {key: value for key, value in body.items() if value is not None}

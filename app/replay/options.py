"""How a replay asks for its contexts."""

from dataclasses import dataclass

from app.core.events import Json
from app.replay.recording import Recording


@dataclass(frozen=True, slots=True)
class Options:
    """How contexts are asked for; None leaves the choice to the server (`format`: to the recording)."""

    format: str | None = None
    max_tokens: int | None = None
    share: float | None = None
    model: str | None = None
    policy: str | None = None

    def format_for(self, recording: Recording) -> str:
        """The format of a recording's contexts."""
        return self.format or recording.format or "openai"

    def context(self, recording: Recording, window_tokens: int | None) -> dict[str, Json]:
        """The body of a request for a context."""
        body = {"format": self.format_for(recording), "max_tokens": window_tokens, "model": self.model}
        return {key: value for key, value in body.items() if value is not None}

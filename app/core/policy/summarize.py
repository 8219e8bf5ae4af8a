"""The part of a policy on summaries."""

from dataclasses import dataclass
from typing import Final

from app.core.policy.knobs import knob as _knob

SUMMARIZERS: Final = ("extractive", "anthropic", "openai")
STYLES: Final = ("structured", "planned", "narrative")
COVER_VIEWS: Final = ("all", "clip", "latest")
SCOPES: Final = ("level", "oldest", "middle")


@dataclass(frozen=True, slots=True)
class Summarize:
    """The way in which older parts of the log are summarized, between turns and by a worker."""

    enabled: bool = _knob("flag", True, "Whether summaries are written.")
    summarizer: str | None = _knob(
        "choice", None, "Summarizer that writes them. Null: the server's default.", choices=SUMMARIZERS
    )
    model: str | None = _knob("name", None, "Name of the model that writes them. Null: the summarizer's default.")
    style: str = _knob(
        "choice",
        "structured",
        "Form of the summaries: under headings (`structured`), the same with a heading for what is not started "
        "(`planned`), or a narrative (`narrative`).",
        choices=STYLES,
    )
    view: str = _knob(
        "choice",
        "all",
        "Which summaries are shown: `all`, the first and the last ones (`clip`), or only the latest, which then "
        "covers everything (`latest`).",
        choices=COVER_VIEWS,
    )
    scope: str = _knob(
        "choice",
        "level",
        "Which summaries are merged when there are too many: the oldest of one depth (`level`), all but the last ones "
        "(`oldest`), or those between the first and the last ones (`middle`).",
        choices=SCOPES,
    )
    chunk_tokens: int = _knob(
        "whole",
        20_000,
        "Size of the events that one summary covers, at most a quarter of the target.",
        unit="tokens",
        least=100,
    )
    chunk_events: int | None = _knob(
        "whole", None, "Number of events that one summary covers. Null: by `chunk_tokens`.", least=1
    )
    max_tokens: int = _knob(
        "whole",
        2_800,
        "Maximum size of a summary of events; a merged one may take more.",
        unit="tokens",
        least=50,
    )
    max_ratio: float | None = _knob(
        "share",
        None,
        "Maximum size of a summary as a share of the target. Null: a quarter if `view` is `latest`, else 5%.",
    )
    prefix_max_tokens: int = _knob(
        "whole", 400, "Maximum size of the part about the beginning of a split turn.", unit="tokens", least=50
    )
    clip_first: int = _knob("whole", 2, "Number of the first summaries that are shown if `view` is `clip`.")
    clip_last: int = _knob("whole", 2, "Number of the last summaries that are shown and not merged.", least=1)
    buffer: int = _knob("whole", 2, "Number of further summaries that may be adjacent before some are merged.")
    rebuild: bool = _knob(
        "flag", False, "Whether a merged summary is written from the events themselves instead of the summaries."
    )
    keep_ratio: float = _knob(
        "share", 0.3, "Share of the target that stays unsummarized, at most 16,000 tokens, if no cut is set."
    )
    role: str = _knob(
        "choice", "user", "Role of the messages that show summaries to the model.", choices=("user", "system")
    )
    on_fail: str = _knob(
        "choice",
        "extractive",
        "What happens if a summarizer fails for good: a summary is written without a model, and again later "
        "(`extractive`), or none is written (`unchanged`).",
        choices=("extractive", "unchanged"),
    )

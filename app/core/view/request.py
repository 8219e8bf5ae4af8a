"""What a caller asks of a view, and the settings that follow."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from app.core.policy.policy import Policy
from app.core.render.layers import Content
from app.core.tokens.budget import own_window
from app.core.view.loaded import ViewRow


@dataclass(frozen=True, slots=True)
class Injection:
    """Content for this call only, beside the user's message at the end."""

    name: str
    content: Content
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """An earlier call that was too long: what we had counted for it, and what its provider did, if it said so."""

    call_id: UUID
    counted: int
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """What a caller asks for; None means: as the view has it."""

    view: str = "main"
    format: str = "openai"
    model: str | None = None
    max_tokens: int | None = None
    at: int | None = None
    policy: str | Mapping[str, Any] | None = None
    force: bool = False
    now: datetime | None = None
    injections: tuple[Injection, ...] = ()
    wait_ms: int | None = None
    retry: Retry | None = None
    outside_tokens: int | None = None
    recall: bool = False


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """What a view is read with."""

    policy_ref: tuple[str, int]
    policy: Policy
    model: str | None
    window_tokens: int


def changed(view: ViewRow | None, settings: ViewSettings) -> str | None:
    """What of a view's settings differs: then it is planned afresh, since its cache is cold anyway."""
    if view is None:
        return None
    if view.model != settings.model:
        return "model"
    if view.window_tokens != settings.window_tokens:
        return "window"
    return "policy" if view.policy != settings.policy_ref else None


def window_of(
    view: ViewRow | None, policy_ref: tuple[str, int], policy: Policy, model: str | None, asked: int | None = None
) -> int:
    """The window that holds: what is asked for, else the view's while its policy and model stay, else their own."""
    if asked is not None:
        return asked
    if view is not None and (view.model, view.policy) == (model, policy_ref):
        return view.window_tokens
    return own_window(policy, model)

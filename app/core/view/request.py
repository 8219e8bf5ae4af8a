"""A caller's request to a view, and the settings that follow from it."""

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
    """Content for this call only, shown with the user's message at the end."""

    name: str
    content: Content
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """An earlier call that was refused as too long: our count, and the provider's `tokens` (None: not reported)."""

    call_id: UUID
    counted: int
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """A caller's request for a context; None means the view's own setting."""

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
    cache_last: bool = True


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """The policy, model and window with which a view is read."""

    policy_ref: tuple[str, int]
    policy: Policy
    model: str | None
    window_tokens: int


def changed_setting(view: ViewRow | None, settings: ViewSettings) -> str | None:
    """Return the setting of a view that `settings` changes, after which nothing is cached for it; None if none."""
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
    """Return `asked`, else the view's window if policy and model are unchanged, else that of the policy and model."""
    if asked is not None:
        return asked
    if view is not None and (view.model, view.policy) == (model, policy_ref):
        return view.window_tokens
    return own_window(policy, model)

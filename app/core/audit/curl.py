"""Requests to providers as shell commands, for people who want to send one again by hand."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from app.core.log.events import canonical_json

ANSWER_TOKENS: Final = 1024
"""Limit of the answer, which Anthropic's API requires."""
_END: Final = "END_OF_REQUEST"


@dataclass(frozen=True, slots=True)
class _Provider:
    """The address and the headers of a provider's API. Keys are named by variables of the shell, never written."""

    address: str
    model: str
    headers: tuple[str, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)


_PROVIDERS: Final[Mapping[str, _Provider]] = {
    "openai": _Provider(
        "https://api.openai.com/v1/chat/completions", "gpt-5-mini", ("Authorization: Bearer $OPENAI_API_KEY",)
    ),
    "openai-responses": _Provider(
        "https://api.openai.com/v1/responses", "gpt-5-mini", ("Authorization: Bearer $OPENAI_API_KEY",)
    ),
    "anthropic": _Provider(
        "https://api.anthropic.com/v1/messages",
        "claude-haiku-5-5",
        ("x-api-key: $ANTHROPIC_API_KEY", "anthropic-version: 2023-06-01"),
        {"max_tokens": ANSWER_TOKENS},
    ),
    "gemini": _Provider(
        "https://generativelanguage.googleapis.com/v1beta/models/{model}:generateContent",
        "gemini-2.5-flash",
        ("x-goog-api-key: $GEMINI_API_KEY",),
    ),
}


def curl_command(form: str, model: str | None, request: Mapping[str, Any]) -> str | None:
    """Return a command that sends a request to the provider of its format; None if the format has no provider.

    The body is one line of ASCII in a quoted here-document: no content can end it, and no shell interprets it. It is
    no argument, because those are limited in size. Without a model, one of the provider's is named.
    """
    provider = _PROVIDERS.get(form)
    if provider is None:
        return None
    named = model or provider.model
    body = {**({} if form == "gemini" else {"model": named}), **provider.fields, **request}
    line = json.dumps(json.loads(canonical_json(body))).replace("!", "\\u0021")  # shells expand ! in a terminal
    address = shlex.quote(provider.address.format(model=quote(named, safe="")))
    headers = "".join(f' \\\n  -H "{header}"' for header in ("content-type: application/json", *provider.headers))
    return f"curl {address}{headers} \\\n  --data-binary @- <<'{_END}'\n{line}\n{_END}\n"

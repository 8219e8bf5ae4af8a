"""A proxy to providers' APIs that replaces conversations by contexts."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator

from app.core.wire.providers import PROVIDERS
from app.runtime.wing import Wing

if TYPE_CHECKING:
    from starlette.routing import Route

    from app.http.operation import Resource
    from app.runtime.wiring import Services
    from app.wings.gateway.upstream import Upstream

PREFIX: Final = "/gateway/"
"""The prefix of the paths that providers' clients call."""


class GatewaySettings(BaseModel):
    """Settings of the gateway."""

    gateway_anthropic_url: str | None = Field(
        None,
        description="Address of Anthropic's API, or of a compatible one, to which `/gateway/anthropic` forwards, such"
        " as `https://api.anthropic.com`. Unset: off.",
    )
    gateway_openai_url: str | None = Field(
        None,
        description="Address of OpenAI's API, or of a compatible one, to which `/gateway/openai` forwards, such as"
        " `https://api.openai.com/v1`. Unset: off.",
    )
    gateway_gemini_url: str | None = Field(
        None,
        description="Address of Gemini's API, to which `/gateway/gemini` forwards, such as"
        " `https://generativelanguage.googleapis.com`. Unset: off.",
    )
    gateway_azure_url: str | None = Field(
        None,
        description="Address of an Azure OpenAI resource, to which `/gateway/azure` forwards, such as"
        " `https://RESOURCE.openai.azure.com`. Unset: off.",
    )
    gateway_vertex_url: str | None = Field(
        None,
        description="Address of Vertex AI in a region, to which `/gateway/vertex` forwards, such as"
        " `https://us-east5-aiplatform.googleapis.com`. Unset: off.",
    )
    gateway_bedrock_url: str | None = Field(
        None,
        description="Address of Amazon Bedrock's runtime in a region, to which `/gateway/bedrock` forwards, such as"
        " `https://bedrock-runtime.us-east-1.amazonaws.com`. Unset: off.",
    )
    gateway_local_url: str | None = Field(
        None,
        description="Address of a local server with OpenAI's API, to which `/gateway/local` forwards, such as"
        " `http://127.0.0.1:8080/v1`. Unset: off.",
    )
    gateway_mode: Literal["enforce", "observe"] = Field(
        "enforce",
        description="Whether the gateway sends contexts in place of clients' conversations (`enforce`), or sends the"
        " clients' own bytes and only records the contexts, in the view `~observed` (`observe`).",
    )
    gateway_holdout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of each tenant's sessions, drawn by their names, for which the gateway observes and does not"
        " enforce, such as `0.1`. The ledger of all sessions compares them with the others.",
    )
    gateway_openai_window_tokens: int | None = Field(
        None,
        ge=1,
        description="Context window with which the server at `GATEWAY_OPENAI_URL` runs its models, such as `32768` of a"
        " local server. A policy's `window_tokens` takes precedence. Unset: the models' own.",
    )
    gateway_local_window_tokens: int | None = Field(
        None,
        ge=1,
        description="Context window with which the server at `GATEWAY_LOCAL_URL` runs its models. A policy's"
        " `window_tokens` takes precedence. Unset: the models' own.",
    )
    gateway_azure_window_tokens: int | None = Field(
        None,
        ge=1,
        description="Context window of the models behind `GATEWAY_AZURE_URL`, for deployments whose names are not their"
        " models'. A policy's `window_tokens` takes precedence. Unset: the models' own.",
    )
    gateway_context_seconds: float = Field(
        5.0,
        gt=0,
        description="Seconds to make a context in the gateway. After that, the client's own conversation is forwarded.",
    )
    gateway_silence_seconds: float = Field(
        600.0, gt=0, description="Seconds for which a provider may send nothing before the gateway gives up with 504."
    )
    gateway_compaction: Literal["gateway", "upstream"] = Field(
        "gateway",
        description="Answerer of clients' requests for a compaction: `gateway`, which returns an item that names the"
        " place in the log and uses no model, or `upstream`, for providers that have compactions of their own. The mode"
        " `observe` always leaves them to the upstream.",
    )
    gateway_requests_max: int = Field(
        500,
        ge=1,
        description="Maximum concurrent gateway requests in one API process; further ones get 503. They do not count"
        " towards `REQUESTS_MAX`.",
    )

    @field_validator(*(one.url_setting for one in PROVIDERS.values()))
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise ValueError("must begin with http:// or https:// and name a host")
        return url or None


def _urls(settings: GatewaySettings) -> dict[str, str]:
    """Return the addresses of the configured providers; the gateway is off without any."""
    urls = {name: getattr(settings, one.url_setting) for name, one in PROVIDERS.items()}
    return {name: url for name, url in urls.items() if url}


def _upstream(settings: GatewaySettings, name: str, url: str) -> "Upstream":
    from app.wings.gateway.upstream import Upstream

    provider = PROVIDERS[name]
    window = getattr(settings, provider.window_setting, None)
    return Upstream(provider.base(url), settings.gateway_silence_seconds, window)


def _services(settings: GatewaySettings, kernel: "Services") -> Iterable[object]:
    from app.wings.gateway.routes import ForwardingAddresses

    yield ForwardingAddresses(urls := _urls(settings))
    if urls:
        from app.wings.gateway.lists import Compactions
        from app.wings.gateway.service import Gateway

        upstreams = {name: _upstream(settings, name, url) for name, url in urls.items()}
        observes = settings.gateway_mode == "observe"
        answers = settings.gateway_compaction == "gateway"
        compactions = Compactions(kernel.database, kernel.reconcile, answers=answers, observes=observes)
        yield Gateway(
            kernel,
            upstreams,
            settings.gateway_context_seconds,
            compactions,
            observes=observes,
            holdout=settings.gateway_holdout,
        )


def _routes(settings: GatewaySettings) -> "Iterable[Route | Resource]":
    from app.wings.gateway.routes import router

    yield router
    if _urls(settings):
        from app.wings.gateway.proxy import route

        yield route(settings.gateway_requests_max, settings.gateway_context_seconds)


WING = Wing(settings=GatewaySettings, services=_services, routes=_routes, foreign_paths=(PREFIX,))

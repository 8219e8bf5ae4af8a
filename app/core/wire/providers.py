"""The providers whose APIs the gateway forwards to: their paths, and the endpoints that take a conversation."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote


class Endpoint(NamedTuple):
    """An endpoint that takes a conversation.

    `counts`: it returns a token count, and no message. `compacts`: it returns a compaction item. `takes_options`: a
    streamed chat completion may request its usage. `versioned`: only bodies with an `anthropic_version` have its
    format. `model` is the model that the path names; None if the body does.
    """

    format: str
    counts: bool = False
    compacts: bool = False
    takes_options: bool = True
    versioned: bool = False
    model: str | None = None

    @property
    def replies(self) -> bool:
        """Whether a model's reply is returned."""
        return not self.counts and not self.compacts


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider's API.

    `paths` match the paths of its endpoints, or paths with queries, and may have a group `model`. `repeated` are ends
    of base URLs that clients' settings contain although the paths include them. `telemetry` is its name in traces.
    `pinged`: it takes requests without an answer.
    """

    name: str
    paths: Mapping[re.Pattern[str], Endpoint]
    repeated: tuple[str, ...] = ()
    telemetry: str = ""
    pinged: bool = False

    @property
    def url_setting(self) -> str:
        """The setting with its address."""
        return f"gateway_{self.name}_url"

    @property
    def window_setting(self) -> str:
        """The setting with the window of its models; not every provider has one."""
        return f"gateway_{self.name}_window_tokens"

    def base(self, url: str) -> str:
        """Return the address to which its paths are appended."""
        plain = url.rstrip("/")
        return next((plain.removesuffix(end) for end in self.repeated if plain.endswith(end)), plain)

    def endpoint(self, uri: str) -> Endpoint | None:
        """Return the endpoint of a path, with or without a query; None if it takes no conversation."""
        path = uri.partition("?")[0]
        for pattern, endpoint in self.paths.items():
            if (found := pattern.fullmatch(uri) or pattern.fullmatch(path)) is not None:
                model = found.groupdict().get("model")
                return endpoint if model is None else endpoint._replace(model=unquote(model))
        return None


def _paths(*endpoints: tuple[str, Endpoint]) -> Mapping[re.Pattern[str], Endpoint]:
    return {re.compile(pattern): endpoint for pattern, endpoint in endpoints}


_OPENAI: Final = _paths(
    (r"/v1/chat/completions", Endpoint("openai")),
    (r"/v1/responses", Endpoint("openai-responses")),
    (r"/v1/responses/compact", Endpoint("openai-responses", compacts=True)),
)
_GEMINI: Final = r"models/(?P<model>[^/:]+):(?:generateContent|streamGenerateContent)"
_DEPLOYMENT: Final = r"/openai/deployments/(?P<model>[^/?]+)"
_OLD_AZURE: Final = r"api-version=20(?:23-|24-0[1-8])"
"""Versions of Azure's API that refuse `stream_options`."""
_VERTEX: Final = r"/(?:v1|v1beta1)/projects/[^/]+/locations/[^/]+/publishers"

PROVIDERS: Final[Mapping[str, Provider]] = {
    one.name: one
    for one in (
        Provider(
            "anthropic",
            _paths(
                (r"/v1/messages", Endpoint("anthropic")),
                (r"/v1/messages/count_tokens", Endpoint("anthropic", counts=True)),
            ),
            repeated=("/v1",),
            telemetry="anthropic",
            pinged=True,
        ),
        Provider("openai", _OPENAI, repeated=("/v1",), telemetry="openai"),
        Provider("local", _OPENAI, repeated=("/v1",), telemetry="local"),
        Provider(
            "gemini",
            _paths((rf"/(?:v1|v1beta|v1alpha)/{_GEMINI}", Endpoint("gemini"))),
            repeated=("/v1beta", "/v1"),
            telemetry="gcp.gemini",
        ),
        Provider(
            "azure",
            _paths(
                (rf"{_DEPLOYMENT}/chat/completions\?(?:.*&)?{_OLD_AZURE}.*", Endpoint("openai", takes_options=False)),
                (rf"{_DEPLOYMENT}/chat/completions", Endpoint("openai")),
                (r"/openai/v1/chat/completions", Endpoint("openai")),
                (r"/openai/(?:v1/)?responses", Endpoint("openai-responses")),
            ),
            repeated=("/openai/v1", "/openai"),
            telemetry="azure.ai.openai",
        ),
        Provider(
            "vertex",
            _paths(
                (rf"{_VERTEX}/anthropic/models/count-tokens:rawPredict", Endpoint("anthropic", counts=True)),
                (
                    rf"{_VERTEX}/anthropic/models/(?P<model>[^/:]+):(?:rawPredict|streamRawPredict)",
                    Endpoint("anthropic"),
                ),
                (rf"{_VERTEX}/google/{_GEMINI}", Endpoint("gemini")),
            ),
            repeated=("/v1", "/v1beta1"),
            telemetry="gcp.vertex_ai",
        ),
        Provider(
            "bedrock",
            _paths(
                (r"/model/(?P<model>[^/]+)/invoke(?:-with-response-stream)?", Endpoint("anthropic", versioned=True))
            ),
            telemetry="aws.bedrock",
        ),
    )
}
"""Providers by the names that the gateway's paths begin with."""

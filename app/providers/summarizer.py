"""The protocol of a model that writes summaries, and the part that all clients share."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.resources import files
from types import ModuleType
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from app.core.compaction.prompt import Completion, Prompt
from app.providers.failures import ProviderError, failure, rejected_parameter
from app.tracing import tracer


class Summarizer(Protocol):
    """A model that writes summaries."""

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - the wire's own limit, too
        """Call the model, for at most `timeout` seconds. Raises ProviderError for every failure."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


class SummarizerClient(ABC):
    """A summarizer that calls `model` through a vendor's package, and traces its requests.

    The traces follow OpenTelemetry's conventions for generative AI, where `provider` is the vendor's name. `sdk` is the
    package, and `sdk_error` the base of its errors. One generator made the packages of both vendors, so that their
    errors have the same names.
    """

    provider: str
    sdk: ModuleType
    sdk_error: type[Exception]

    def __init__(self, model: str, api_key: str, base_url: str | None, client: Any) -> None:
        self.model = model
        self._key = api_key
        self._host = None if base_url is None else urlsplit(base_url).hostname
        self._client = client
        self._rejected: set[tuple[str, str]] = set()
        """Pairs of a model and a parameter that it does not accept."""

    async def aclose(self) -> None:
        """See Summarizer."""
        await self._client.close()

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - the wire's own limit, too
        """See Summarizer."""
        model = ask.model or self.model
        with tracer.get().span(
            f"chat {model}",
            "client",
            gen_ai__operation__name="chat",
            gen_ai__provider__name=self.provider,
            gen_ai__request__model=model,
            gen_ai__request__max_tokens=ask.max_tokens,
            gen_ai__request__temperature=ask.temperature,
            server__address=self._host,
        ) as span:
            try:
                answer = await self._ask(ask, timeout)
            except ProviderError as error:
                span.fail(error.kind)
                raise error.redacted(self._key) from None
            span.set(
                gen_ai__response__model=answer.model,
                gen_ai__usage__input_tokens=answer.input_tokens,
                gen_ai__usage__output_tokens=answer.output_tokens,
            )
            return answer

    async def _ask(self, ask: Prompt, seconds: float) -> Completion:
        try:
            async with asyncio.timeout(seconds):
                return await self._complete(ask, seconds)
        except (TimeoutError, self.sdk.APITimeoutError):
            raise ProviderError("timeout", f"no answer within {seconds:g} seconds") from None
        except self.sdk.APIConnectionError as error:
            raise ProviderError("connection", str(error.__cause__ or error)) from error
        except self.sdk.APIStatusError as error:
            raise failure(error.status_code, self._message(error), error.response.headers) from error
        except (self.sdk_error, AttributeError, TypeError, ValueError) as error:
            raise ProviderError("server", f"an answer that is no completion: {error}") from error

    async def _complete(self, ask: Prompt, seconds: float) -> Completion:
        """Send the request, and again without each optional parameter that the model does not accept."""
        model = ask.model or self.model
        while True:
            extra = self._optional(ask, model)
            try:
                return self._completion(await self._send(ask, model, extra, seconds))
            except (self.sdk.BadRequestError, self.sdk.UnprocessableEntityError) as error:
                name = rejected_parameter(self._message(error), extra)
                if name is None:
                    raise
                self._rejected.add((model, name))

    def _optional(self, ask: Prompt, model: str) -> dict[str, Any]:
        """Return the parameters of a request that some models do not accept."""
        return {"temperature": ask.temperature} if (model, "temperature") not in self._rejected else {}

    @abstractmethod
    async def _send(self, ask: Prompt, model: str, extra: Mapping[str, Any], seconds: float) -> Any: ...

    @abstractmethod
    def _message(self, error: Any) -> str: ...

    @abstractmethod
    def _completion(self, reply: Any) -> Completion: ...


_SUFFIX: Final = ".md"


def load_prompts() -> Mapping[str, str]:
    """Read all prompts, by name and version, such as `structured.v1`. A version's text never changes."""
    folder = files("app") / "prompts"
    return {
        entry.name.removesuffix(_SUFFIX): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(_SUFFIX)
    }

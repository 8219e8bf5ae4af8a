"""The part of all clients of models that write summaries: their requests, the limits on answers, and errors by kind."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from app.core.compaction.prompt import Completion, Prompt
from app.core.policy.overflow import MESSAGE_CHARS_MAX, classify
from app.providers import DETAIL_CHARS_MAX, Kind, ProviderError, Unpacker, Unreadable, retry_after
from app.tracing import tracer


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


ANSWER_BYTES_MAX: Final = 2 * 1024 * 1024
"""Maximum bytes of a summarizer's answer, unpacked: many times the longest summary."""
ANSWER_VALUES_MAX: Final = 100_000
"""Maximum brackets, braces and commas in such an answer: the clients make a Python object of each value."""


class _BoundedStream(httpx2.AsyncByteStream):
    """A body that is unpacked here, and raises DecodingError above the limits."""

    def __init__(self, inner: Any, encoding: str) -> None:
        self._inner = inner
        self._encoding = encoding

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = values = 0
        try:
            unpacker = Unpacker(self._encoding)
            async for piece in self._inner:
                for plain in unpacker.feed(piece):
                    size += len(plain)
                    values += sum(map(plain.count, (b"[", b"{", b",")))
                    if size > ANSWER_BYTES_MAX or values > ANSWER_VALUES_MAX:
                        raise httpx2.DecodingError("the provider's answer is too large for a summary")
                    yield plain
        except Unreadable as error:
            raise httpx2.DecodingError(f"the provider's answer cannot be unpacked: {error}") from None

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _bound(response: httpx2.Response) -> None:
    encoding = response.headers.pop("content-encoding", "")
    response.stream = _BoundedStream(response.stream, encoding)


async def _offer_encodings(request: httpx2.Request) -> None:
    request.headers["accept-encoding"] = "gzip, deflate"


BOUNDED: Final[dict[str, Any]] = {"request": [_offer_encodings], "response": [_bound]}
"""Hooks of an httpx client that apply the limits."""


_QUOTA: Final = re.compile(r"insufficient_quota|exceeded your current quota|credit balance|spend(?:ing)? limit", re.I)
_UNSUPPORTED: Final = re.compile(
    r"unsupported (?:parameter|value)|not supported|does not support|deprecated|unrecognized"
    r"|unknown (?:parameter|field)|extra (?:inputs|fields)|not permitted",
    re.IGNORECASE,
)
_STATUSES: Final[Mapping[int, Kind]] = {
    401: "auth",
    402: "spent",
    403: "auth",
    408: "timeout",
    409: "server",
    413: "context_too_long",
    425: "server",
    429: "rate_limited",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}


def too_long(message: str) -> bool:
    """Return whether an error's message says that the request does not fit the model's window."""
    return classify(message) is not None


def failure(status: int, message: str, headers: Mapping[str, str]) -> ProviderError:
    """Return the error for a response. `message` is its body, or the text that the provider's client made of it."""
    message = message[:MESSAGE_CHARS_MAX]
    kind, overflow = _kind(status, message), classify(message)
    room = overflow.room if overflow is not None and kind == "context_too_long" else None
    return ProviderError(kind, _detail(status, message), retry_after=retry_after(headers), room=room)


def rejected_parameter(message: str, sent: Collection[str]) -> str | None:
    """Return the parameter in `sent` that the model does not accept, by its error message; None for another error."""
    if not _UNSUPPORTED.search(message):
        return None
    return next((name for name in sent if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message)), None)


def _kind(status: int, message: str) -> Kind:
    wordless = message in ("", f"Error code: {status}")  # how some providers report an overflow
    if (status in (400, 413, 422, 500) and too_long(message)) or (status == 400 and wordless):
        return "context_too_long"
    if status in (400, 403, 429) and _QUOTA.search(message):
        return "spent"
    if known := _STATUSES.get(status):
        return known
    return "server" if status >= 500 else "invalid"


def _detail(status: int, message: str) -> str:
    """Return the message to show and store, without a refused key, which the provider quotes."""
    if status in (401, 403):
        return f"HTTP {status}: the provider refused the key"
    return f"HTTP {status}: {' '.join(message.split())}"[:DETAIL_CHARS_MAX]

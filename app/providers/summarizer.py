"""Models that write summaries: their protocol, the part of all clients, a circuit breaker and a spending limit."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from types import ModuleType
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from app.core.compaction.prompt import Completion, Prompt
from app.providers.failures import Kind, ProviderError, failure, rejected_parameter
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


HOUR: Final = 3600.0
BUCKET: Final = 60.0
"""Seconds per entry of spending: a minute, so that the record stays short."""
CHARS_PER_TOKEN: Final = 3.0
"""Characters per token, to estimate a request's cost before the provider has reported it."""
REQUEST_FAULTS: Final[frozenset[Kind]] = frozenset({"context_too_long", "invalid"})
"""Failures caused by the request, which say nothing against the provider."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`failures` in a row open the circuit for `seconds`; `tokens` may be spent in any hour (None: no limit)."""

    tokens: int | None = None
    failures: int = 3
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class GuardState:
    """The state of the breaker and the limit.

    `spent` are (end of the minute, tokens), oldest first. `reserved` are tokens for requests in flight. If `probing`, a
    single request in flight tests the open circuit.
    """

    spent: tuple[tuple[float, int], ...] = ()
    reserved: int = 0
    failures: int = 0
    open_until: float | None = None
    """No request is admitted before this time; then one is, and its result decides. None: the circuit is closed."""
    probing: bool = False


def expected_tokens(ask: Prompt) -> int:
    """Return the approximate maximum of tokens that a request may cost: its own and the longest answer's."""
    return math.ceil((len(ask.system) + len(ask.prompt)) / CHARS_PER_TOKEN) + ask.max_tokens


def admit(state: GuardState, rules: Rules, tokens: int, now: float) -> GuardState:
    """Return the state with one more request in flight, which may cost `tokens`. Raises `open` or `spent`."""
    state = forget(state, now)
    if state.open_until is not None and (now < state.open_until or state.probing):
        wait = max(state.open_until - now, 1.0)
        raise ProviderError("open", "it failed too often just now", retry_after=wait, retryable=True)
    if rules.tokens is not None:
        _check_spending(state, rules.tokens, tokens, now)
    return replace(state, reserved=state.reserved + tokens, probing=state.open_until is not None)


def after_success(state: GuardState, reserved: int, tokens: int, now: float) -> GuardState:
    """Return the state after an answer that cost `tokens`; the circuit is closed."""
    state = _charge(state, reserved, tokens, now)
    return replace(state, failures=0, open_until=None, probing=False)


def after_failure(state: GuardState, rules: Rules, reserved: int, error: ProviderError, now: float) -> GuardState:
    """Return the state after a failure. A timed-out request may have been billed: its whole reservation is charged."""
    state = _charge(state, reserved, reserved if error.kind == "timeout" else 0, now)
    if error.kind in REQUEST_FAULTS:
        return replace(state, failures=0, open_until=None, probing=False)
    failures = state.failures + 1
    if failures < rules.failures and not state.probing:
        return replace(state, failures=failures)
    until = now + max(rules.seconds, min(error.retry_after or 0.0, HOUR))
    return replace(state, failures=failures, open_until=until, probing=False)


def after_cancellation(state: GuardState, reserved: int, now: float) -> GuardState:
    """Return the state after a request that its caller gave up, which says nothing about the provider."""
    return replace(_charge(state, reserved, reserved, now), probing=False)


def forget(state: GuardState, now: float) -> GuardState:
    """Return the state without the spending of more than an hour ago."""
    if not state.spent or state.spent[0][0] > now - HOUR:
        return state
    return replace(state, spent=tuple(entry for entry in state.spent if entry[0] > now - HOUR))


def _check_spending(state: GuardState, allowed: int, tokens: int, now: float) -> None:
    if tokens > allowed:
        raise ProviderError("spent", f"about {tokens} tokens, more than the {allowed} allowed in an hour")
    over = sum(cost for _, cost in state.spent) + state.reserved + tokens - allowed
    if over <= 0:
        return
    wait = BUCKET
    for at, cost in state.spent:
        wait = max(at + HOUR - now, 1.0)
        over -= cost
        if over <= 0:
            break
    raise ProviderError("spent", f"the {allowed} tokens allowed in an hour are spent", retry_after=wait, retryable=True)


def _charge(state: GuardState, reserved: int, tokens: int, now: float) -> GuardState:
    state = replace(forget(state, now), reserved=max(0, state.reserved - reserved))
    if not tokens:
        return state
    # A minute's spending counts until its last token is an hour old.
    minute = (now // BUCKET + 1) * BUCKET
    *before, last = state.spent or ((minute, 0),)
    if last[0] == minute:
        return replace(state, spent=(*before, (minute, last[1] + tokens)))
    return replace(state, spent=(*before, last, (minute, tokens)))


class GuardedSummarizer:
    """A summarizer with a circuit breaker and an hourly token limit, for this process. `clock` is monotonic seconds."""

    def __init__(
        self,
        inner: Summarizer,
        *,
        clock: Callable[[], float],
        spend_tokens_max: int | None = None,
        breaker_failures: int = 3,
        breaker_seconds: float = 60.0,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._rules = Rules(spend_tokens_max, breaker_failures, breaker_seconds)
        self.state = GuardState()

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - the wire's own limit, too
        """See Summarizer. Raises `open` or `spent` without a request."""
        reserved = expected_tokens(ask)
        self.state = admit(self.state, self._rules, reserved, self._clock())
        try:
            answer = await self._inner.summarize(ask, timeout=timeout)
        except ProviderError as error:
            self.state = after_failure(self.state, self._rules, reserved, error, self._clock())
            raise
        except BaseException:
            self.state = after_cancellation(self.state, reserved, self._clock())
            raise
        self.state = after_success(self.state, reserved, cost(answer, reserved), self._clock())
        return answer

    async def aclose(self) -> None:
        """See Summarizer."""
        await self._inner.aclose()


def cost(answer: Completion, reserved: int) -> int:
    """Return the tokens that an answer cost; `reserved` if the provider did not report them."""
    if answer.input_tokens is None or answer.output_tokens is None:
        return reserved
    return answer.input_tokens + answer.output_tokens

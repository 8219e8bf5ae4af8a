"""A summarizer that is left alone while it fails, and that spends no more than it may."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from app.core.compaction.prompt import Completion, Prompt
from app.providers.summarizer import Kind, ProviderError, Summarizer

HOUR: Final = 3600.0
BUCKET: Final = 60.0
"""Spending is remembered by the minute, so that its record stays short."""
CHARS_PER_TOKEN: Final = 3.0
"""What a request is taken to cost before the provider has said so."""
BLAMELESS: Final[frozenset[Kind]] = frozenset({"context_too_long", "invalid"})
"""Failures of the request: the provider answered and is well."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`failures` in a row open the circuit for `seconds`; `tokens` may be spent in any hour, None: any number."""

    tokens: int | None = None
    failures: int = 3
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class GuardState:
    """What was spent, by minute and oldest first, what is reserved for requests under way, and the circuit."""

    spent: tuple[tuple[float, int], ...] = ()
    reserved: int = 0
    failures: int = 0
    closed_until: float | None = None
    """No request before this; then one, whose end decides. None: as many as there are."""
    probing: bool = False


def expected_tokens(ask: Prompt) -> int:
    """What a request may cost at most, about: what it holds and the longest answer."""
    return math.ceil((len(ask.system) + len(ask.prompt)) / CHARS_PER_TOKEN) + ask.max_tokens


def admit(state: GuardState, rules: Rules, tokens: int, now: float) -> GuardState:
    """The state with a request under way that may cost `tokens`. Raises ProviderError: `open` or `spent`."""
    state = forget(state, now)
    if state.closed_until is not None and (now < state.closed_until or state.probing):
        wait = max(state.closed_until - now, 1.0)
        raise ProviderError("open", "it failed too often just now", retry_after=wait, retryable=True)
    if rules.tokens is not None:
        _check_spending(state, rules.tokens, tokens, now)
    return replace(state, reserved=state.reserved + tokens, probing=state.closed_until is not None)


def succeeded(state: GuardState, reserved: int, tokens: int, now: float) -> GuardState:
    """The state after an answer that cost `tokens`; the circuit is whole."""
    state = _charged(state, reserved, tokens, now)
    return replace(state, failures=0, closed_until=None, probing=False)


def failed(state: GuardState, rules: Rules, reserved: int, error: ProviderError, now: float) -> GuardState:
    """The state after a failure. A request that may have been worked on is charged as it was reserved."""
    state = _charged(state, reserved, reserved if error.kind == "timeout" else 0, now)
    if error.kind in BLAMELESS:
        return replace(state, failures=0, closed_until=None, probing=False)
    failures = state.failures + 1
    if failures < rules.failures and not state.probing:
        return replace(state, failures=failures)
    until = now + max(rules.seconds, min(error.retry_after or 0.0, HOUR))
    return replace(state, failures=failures, closed_until=until, probing=False)


def abandoned(state: GuardState, reserved: int, now: float) -> GuardState:
    """The state after a request that was given up by its caller, which says nothing about the provider."""
    return replace(_charged(state, reserved, reserved, now), probing=False)


def forget(state: GuardState, now: float) -> GuardState:
    """The state without what was spent more than an hour ago."""
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


def _charged(state: GuardState, reserved: int, tokens: int, now: float) -> GuardState:
    state = replace(forget(state, now), reserved=max(0, state.reserved - reserved))
    if not tokens:
        return state
    # A minute's spending counts until its last token is an hour old.
    minute = (now // BUCKET + 1) * BUCKET
    *before, last = state.spent or ((minute, 0),)
    if last[0] == minute:
        return replace(state, spent=(*before, (minute, last[1] + tokens)))
    return replace(state, spent=(*before, last, (minute, tokens)))


class Guarded:
    """A summarizer behind a circuit breaker and a limit on tokens per hour, both of this process alone.

    `clock` gives seconds that never go back.
    """

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
        """See Summarizer; fails with `open` or `spent` without asking."""
        reserved = expected_tokens(ask)
        self.state = admit(self.state, self._rules, reserved, self._clock())
        try:
            answer = await self._inner.summarize(ask, timeout=timeout)
        except ProviderError as error:
            self.state = failed(self.state, self._rules, reserved, error, self._clock())
            raise
        except BaseException:
            self.state = abandoned(self.state, reserved, self._clock())
            raise
        self.state = succeeded(self.state, reserved, cost(answer, reserved), self._clock())
        return answer

    async def aclose(self) -> None:
        """See Summarizer."""
        await self._inner.aclose()


def cost(answer: Completion, reserved: int) -> int:
    """What an answer has cost; what was reserved for it where the provider does not say."""
    if answer.input_tokens is None or answer.output_tokens is None:
        return reserved
    return answer.input_tokens + answer.output_tokens

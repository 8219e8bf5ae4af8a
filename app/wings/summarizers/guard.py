"""A circuit breaker and a limit on spending for models that write summaries."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from app.core.compaction.prompt import Completion, Prompt
from app.providers import Kind, ProviderError, Summarizer, cost, expected_tokens

HOUR: Final = 3600.0
BUCKET: Final = 60.0
"""Seconds per entry of spending: a minute, so that the record stays short."""
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
    over = sum(spent for _, spent in state.spent) + state.reserved + tokens - allowed
    if over <= 0:
        return
    wait = BUCKET
    for at, spent in state.spent:
        wait = max(at + HOUR - now, 1.0)
        over -= spent
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

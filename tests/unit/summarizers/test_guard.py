"""The circuit breaker of a provider: after consecutive failures, and at the spending limit."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import pytest

from app.core.compaction.prompt import Completion, Prompt
from app.providers import ProviderError, Summarizer, expected_tokens
from app.wings.summarizers.guard import BUCKET, HOUR, GuardedSummarizer, GuardState

ASK = Prompt("s" * 300, "p" * 600, 100, 0.2)
COST = expected_tokens(ASK)
GOOD = Completion("fine", "m", input_tokens=300, output_tokens=50)


@dataclass
class Scripted:
    """A summarizer with scripted outcomes, which counts its calls."""

    outcomes: list[Completion | Exception] = field(default_factory=list)
    gate: asyncio.Event | None = None
    calls: int = 0
    closed: bool = False

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - the wire's own limit, too
        self.calls += 1
        if self.gate:
            await self.gate.wait()
        outcome = self.outcomes.pop(0) if self.outcomes else GOOD
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class Clock:
    now: float = 10_000.0

    def __call__(self) -> float:
        return self.now


def provider_error(kind: str = "server", **more: float) -> ProviderError:
    return ProviderError(kind, "no", **more)


async def ask(guarded: Summarizer) -> str:
    """Return the outcome: `ok`, or the kind of failure."""
    try:
        await guarded.summarize(ASK, timeout=1)
    except ProviderError as error:
        return error.kind
    return "ok"


def make_guard(*outcomes: Completion | Exception, **rules: float) -> tuple[GuardedSummarizer, Scripted, Clock]:
    inner, clock = Scripted(list(outcomes)), Clock()
    return GuardedSummarizer(inner, clock=clock, **rules), inner, clock


async def test_failures_in_a_row_open_the_circuit_and_nothing_is_asked() -> None:
    guarded, inner, clock = make_guard(provider_error(), provider_error("timeout"), provider_error("rate_limited"))
    assert [await ask(guarded) for _ in range(5)] == ["server", "timeout", "rate_limited", "open", "open"]
    assert inner.calls == 3
    clock.now += 20
    with pytest.raises(ProviderError) as caught:
        await guarded.summarize(ASK, timeout=1)
    assert (caught.value.retryable, caught.value.retry_after) == (True, 40.0)


async def test_an_answer_between_failures_starts_the_count_again() -> None:
    guarded, inner, _ = make_guard(provider_error(), provider_error(), GOOD, provider_error(), provider_error(), GOOD)
    assert [await ask(guarded) for _ in range(6)] == ["server", "server", "ok", "server", "server", "ok"]
    assert inner.calls == 6


async def test_a_probe_that_succeeds_closes_the_circuit() -> None:
    guarded, inner, clock = make_guard(provider_error(), provider_error(), provider_error())
    for _ in range(3):
        await ask(guarded)
    clock.now += 60
    assert [await ask(guarded) for _ in range(3)] == ["ok", "ok", "ok"]
    assert inner.calls == 6


async def test_a_failed_probe_opens_the_circuit_again() -> None:
    guarded, inner, clock = make_guard(provider_error(), provider_error(), provider_error(), provider_error())
    for _ in range(3):
        await ask(guarded)
    clock.now += 60
    assert [await ask(guarded) for _ in range(2)] == ["server", "open"]
    clock.now += 60
    assert await ask(guarded) == "ok"
    assert inner.calls == 5


async def test_one_probe_runs_at_a_time_and_a_cancelled_one_permits_the_next() -> None:
    guarded, inner, clock = make_guard(provider_error(), provider_error(), provider_error())
    for _ in range(3):
        await ask(guarded)
    clock.now += 60
    inner.gate = asyncio.Event()
    probe = asyncio.create_task(ask(guarded))
    await asyncio.sleep(0)
    assert inner.calls == 4
    assert await ask(guarded) == "open"
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    inner.gate = None
    assert await ask(guarded) == "ok"
    assert inner.calls == 5


async def test_a_request_at_fault_does_not_blame_the_provider() -> None:
    guarded, inner, _ = make_guard(*[provider_error("context_too_long"), provider_error("invalid")] * 5)
    assert {await ask(guarded) for _ in range(10)} == {"context_too_long", "invalid"}
    assert inner.calls == 10


async def test_a_retry_after_is_respected_up_to_a_limit() -> None:
    for said, waits in ((300.0, 300.0), (10.0 * HOUR, HOUR)):
        guarded, _, clock = make_guard(provider_error("rate_limited", retry_after=said), breaker_failures=1)
        assert await ask(guarded) == "rate_limited"
        clock.now += waits - 1
        assert await ask(guarded) == "open"
        clock.now += 1
        assert await ask(guarded) == "ok"


async def test_no_more_is_spent_than_allowed_in_any_hour() -> None:
    guarded, inner, clock = make_guard(spend_tokens_max=350 * 2 + COST - 1)
    assert [await ask(guarded) for _ in range(3)] == ["ok", "ok", "spent"]
    assert inner.calls == 2
    with pytest.raises(ProviderError) as caught:
        await guarded.summarize(ASK, timeout=1)
    wait = caught.value.retry_after
    assert caught.value.retryable
    assert wait is not None
    assert HOUR <= wait <= HOUR + BUCKET
    clock.now += HOUR - 1
    assert await ask(guarded) == "spent"
    clock.now += wait - HOUR + 1
    assert await ask(guarded) == "ok"


async def test_running_requests_count_with_their_maximum_cost() -> None:
    guarded, inner, _ = make_guard(spend_tokens_max=2 * COST)
    inner.gate = asyncio.Event()
    running = [asyncio.create_task(ask(guarded)) for _ in range(3)]
    await asyncio.sleep(0)
    inner.gate.set()
    assert sorted(await asyncio.gather(*running)) == ["ok", "ok", "spent"]
    assert guarded.state.reserved == 0
    assert sum(cost for _, cost in guarded.state.spent) == 2 * 350


async def test_a_request_larger_than_the_limit_is_refused_for_good() -> None:
    guarded, inner, _ = make_guard(spend_tokens_max=COST - 1)
    with pytest.raises(ProviderError) as caught:
        await guarded.summarize(ASK, timeout=1)
    assert (caught.value.kind, caught.value.retryable) == ("spent", False)
    assert inner.calls == 0


@pytest.mark.parametrize(
    ("outcome", "charged"),
    [
        (GOOD, 350),
        (Completion("x", "m"), COST),
        (provider_error(), 0),
        (provider_error("timeout"), COST),
        (KeyError("bug"), COST),
    ],
)
async def test_charged_tokens(outcome: Completion | Exception, charged: int) -> None:
    guarded, _, _ = make_guard(outcome)
    with contextlib.suppress(KeyError):
        await ask(guarded)
    assert sum(cost for _, cost in guarded.state.spent) == charged
    assert guarded.state.reserved == 0


async def test_the_record_of_spending_stays_short() -> None:
    guarded, _, clock = make_guard()
    for _ in range(1000):
        await ask(guarded)
        clock.now += 17
    assert len(guarded.state.spent) <= HOUR / BUCKET + 2


async def test_closing_reaches_the_summarizer_inside() -> None:
    guarded, inner, _ = make_guard()
    await guarded.aclose()
    assert inner.closed
    assert guarded.state == GuardState()

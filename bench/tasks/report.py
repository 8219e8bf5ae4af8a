"""Tables of a run's results."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean, median

from bench.tasks.billing import Usage
from bench.tasks.ledger import AGENT, PROVIDER, Call, Ledger, Verdict, billed, total
from bench.tasks.statistics import mean_interval, paired_difference, percentile, wilson

Attempt = tuple[str, str, int]


def report(ledger: Ledger) -> str:
    """Return the tables: an arm's results, its bill, and each pair of arms on the tasks that both finished."""
    arms: Sequence[str] = ledger.setting["arms"]
    finished = {(one.arm, one.task): one for one in ledger.verdicts if not one.crashed}
    of_arm = {arm: [one for one in finished.values() if one.arm == arm] for arm in arms}
    parts = [
        "\n".join(_results(ledger, of_arm)),
        "\n".join(_bills(ledger, of_arm)),
        "\n".join(_pairs(ledger, arms, finished)),
        *_others(ledger, finished),
    ]
    return "\n\n".join(parts)


def _results(ledger: Ledger, of_arm: Mapping[str, Sequence[Verdict]]) -> Iterator[str]:
    yield "| arm | finished | solved | 95% | crashed | steps, median | p50 s | p99 s | too long: agent | provider |"
    yield "|---|---:|---:|---|---:|---:|---:|---:|---:|---:|"
    for arm, verdicts in of_arm.items():
        done = {_key(one) for one in verdicts}
        calls = [one for one in ledger.calls if _key(one) in done]
        answered = [one for one in calls if one.side == AGENT and one.status < 400]
        steps = [sum(_key(call) == key for call in answered) for key in done]
        seconds = [one.seconds for one in answered]
        low, high = wilson(sum(one.solved for one in verdicts), len(verdicts))
        crashed = len({one.task for one in ledger.verdicts if one.arm == arm} - {one.task for one in verdicts})
        refused = [sum(one.too_long for one in calls if one.side == side) for side in (AGENT, PROVIDER)]
        yield (
            f"| {arm} | {len(verdicts)} | {sum(one.solved for one in verdicts)} | {low:.0%} to {high:.0%} | {crashed} "
            f"| {median(steps or [0]):g} | {percentile(seconds, 50):.3f} | {percentile(seconds, 99):.3f} "
            f"| {refused[0]} | {refused[1]} |"
        )


def _bills(ledger: Ledger, of_arm: Mapping[str, Sequence[Verdict]]) -> Iterator[str]:
    yield "| arm | fresh | read | write | write, 1 h | output | USD | USD a task | USD a solved task |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    paid = billed(ledger.calls)
    for arm, verdicts in of_arm.items():
        done = {_key(one) for one in verdicts}
        usage = total(one for one in paid if _key(one) in done)
        price, solved = ledger.prices.of(usage), sum(one.solved for one in verdicts)
        counts = f"{usage.fresh:,} | {usage.read:,} | {usage.write:,} | {usage.hour:,} | {usage.output:,}"
        each, of_solved = (f"{price / count:.4f}" if count else "-" for count in (len(verdicts), solved))
        yield f"| {arm} | {counts} | {price:.4f} | {each} | {of_solved} |"


def _pairs(ledger: Ledger, arms: Sequence[str], finished: Mapping[tuple[str, str], Verdict]) -> Iterator[str]:
    yield "| first | second | both | only first solved | only second | difference | 95% | USD a task | 95% |"
    yield "|---|---|---:|---:|---:|---:|---|---:|---|"
    prices = _prices(ledger)
    for first, second in combinations(arms, 2):
        both = [task for arm, task in finished if arm == first and (second, task) in finished]
        pairs = [(finished[first, task], finished[second, task]) for task in both]
        one = sum(a.solved and not b.solved for a, b in pairs)
        other = sum(b.solved and not a.solved for a, b in pairs)
        share, (low, high) = paired_difference(one, other, len(pairs))
        saved = [prices.get(_key(a), 0.0) - prices.get(_key(b), 0.0) for a, b in pairs]
        least, most = mean_interval(saved)
        yield (
            f"| {first} | {second} | {len(pairs)} | {one} | {other} | {share:+.1%} | {low:+.1%} to {high:+.1%} "
            f"| {fmean(saved or [0.0]):+.4f} | {least:+.4f} to {most:+.4f} |"
        )


def _others(ledger: Ledger, finished: Mapping[tuple[str, str], Verdict]) -> Iterator[str]:
    """Yield the paid attempts that are in no table, and the tasks that only crashed."""
    kept = {_key(one) for one in finished.values()}
    lost = {_key(one) for one in ledger.calls} - kept
    price = ledger.prices.of(total(one for one in billed(ledger.calls) if _key(one) in lost))
    yield f"Spent: USD {ledger.spent():.4f}, of which {price:.4f} on {len(lost)} crashed or interrupted attempts."
    ends: dict[tuple[str, str], str] = {(one.arm, one.task): one.ended for one in ledger.verdicts if one.crashed}
    rows = [f"| {arm} | {task} | {ended} |" for (arm, task), ended in ends.items() if (arm, task) not in finished]
    if rows:
        yield "\n".join(["| crashed in | task | reason |", "|---|---|---|", *rows])


def _prices(ledger: Ledger) -> Mapping[Attempt, float]:
    sums: dict[Attempt, Usage] = {}
    for one in billed(ledger.calls):
        sums[_key(one)] = sums.get(_key(one), Usage()) + (one.usage or Usage())
    return {key: ledger.prices.of(usage) for key, usage in sums.items()}


def _key(one: Call | Verdict) -> Attempt:
    return one.arm, one.task, one.attempt

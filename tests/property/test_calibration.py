"""Calibration from samples: near the truth, never below the evidence, robust against outliers, and seldom changed."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from app.core.policy.groups import Trigger
from app.core.policy.policy import Policy
from app.core.tokens import calibration
from app.core.tokens.budget import Budget, budget_for
from app.core.tokens.calibration import (
    COUNTED_MIN,
    HEADROOM,
    MANY,
    MARGIN_LEAST,
    RATIO_LEAST,
    RATIO_MOST,
    RECENT,
    SAMPLES_MAX,
    SMALL_SHARE,
    STEP,
    Calibration,
    Claim,
    Reported,
    Sample,
    believable,
    corroborated,
    learn,
    local_ratio,
    relearn,
    retry_target,
    with_accepted,
    with_claim,
    with_sample,
)
from app.core.tokens.learned import (
    GROWTH_LEAST,
    POINTS_LEAST,
    POINTS_MAX,
    Point,
    fit_outside,
    initial_state,
    with_point,
)

OWN = 0.1
START = Calibration("heuristic", 1.0, OWN)

counts = st.integers(min_value=1_000, max_value=200_000)
ratios = st.floats(min_value=0.3, max_value=8.0)
samples = st.builds(lambda counted, ratio: Sample(counted, round(counted * ratio)), counts, ratios)


def learn_from(stream: list[Sample], own: float = OWN) -> tuple[Calibration, tuple[Sample, ...]]:
    known: Calibration = START
    seen: tuple[Sample, ...] = ()
    for sample in stream:
        seen = with_sample(seen, sample)
        known = learn(known, seen, own)
    return known, seen


def largest_ratio(seen: tuple[Sample, ...]) -> float:
    """Return the largest recent ratio among the samples that are not far smaller than the others."""
    most = max(sample.counted for sample in seen)
    used = [sample for sample in seen if sample.counted >= SMALL_SHARE * most]
    return max(sample.ratio for sample in used[-RECENT:])


@given(st.lists(samples, min_size=1, max_size=150))
def test_the_margin_is_never_below_the_evidence(stream: list[Sample]) -> None:
    known, seen = learn_from(stream)
    assert len(seen) <= SAMPLES_MAX
    assert largest_ratio(seen) <= known.ratio * (1 + known.margin) * (1 + 1e-9)
    assert known.margin >= MARGIN_LEAST - STEP / 10


@given(ratios, st.floats(min_value=0, max_value=0.02), st.lists(counts, min_size=MANY, max_size=40), st.randoms())
def test_the_ratio_is_near_the_truth_and_the_margin_as_small_as_the_spread(
    truth: float, spread: float, sizes: list[int], random: Random
) -> None:
    noise = [1 + spread * (2 * random.random() - 1) for _ in sizes]
    known, _ = learn_from([Sample(size, round(size * truth * one)) for size, one in zip(sizes, noise, strict=True)])
    assert abs(known.ratio / truth - 1) <= spread + STEP + 0.005
    assert known.margin <= OWN or known.margin <= 2 * spread * HEADROOM + 0.03


@given(st.lists(samples, min_size=MANY, max_size=80), st.integers(min_value=0))
def test_a_single_oddity_moves_no_ratio_far_and_nonsense_nothing(stream: list[Sample], reported: int) -> None:
    steady = [Sample(one.counted, one.counted * 2) for one in stream]
    known, seen = learn_from(steady)
    odd = Sample(steady[-1].counted, reported)
    after = learn(known, with_sample(seen, odd), OWN)
    if not RATIO_LEAST <= odd.ratio <= RATIO_MOST:
        assert (after, with_sample(seen, odd)) == (known, seen)
    elif sum(one.counted for one in steady) > 3 * odd.counted:
        assert abs(after.ratio / known.ratio - 1) <= STEP


@given(st.lists(samples, min_size=1, max_size=MANY - 1))
def test_few_samples_do_not_make_the_margin_smaller_than_the_estimators_own(stream: list[Sample]) -> None:
    known, _ = learn_from(stream)
    assert known.margin >= OWN - STEP / 10 - 1e-9


@given(st.lists(st.integers(min_value=1_000, max_value=round(1_000 / SMALL_SHARE)), min_size=20, max_size=60))
def test_repeated_samples_change_nothing(sizes: list[int]) -> None:
    known, _ = learn_from([Sample(size, size * 3) for size in sizes])
    assert (known.ratio, known.version) == (3.0, 2), "once when learnt, once when there are many of them"


def test_the_first_of_far_larger_requests_is_as_unsure_as_the_first_of_all() -> None:
    known, seen = learn_from([Sample(1_000, 3_000)] * MANY)
    assert (known.ratio, known.margin) == (3.0, MARGIN_LEAST)
    larger = Sample(round(1_000 / SMALL_SHARE) + 1, 3 * (round(1_000 / SMALL_SHARE) + 1))
    known = learn(known, with_sample(seen, larger), OWN)
    assert (known.ratio, known.margin) == (3.0, OWN)


@given(st.lists(samples, min_size=1, max_size=10), samples)
def test_a_refusals_sample_counts_only_until_a_report(refused: list[Sample], reported: Sample) -> None:
    lower = [one._replace(least=True) for one in refused]
    known, seen = learn_from(lower)
    assert all(one.ratio <= known.ratio * (1 + known.margin) * (1 + 1e-9) for one in lower[-1:]) or (
        lower[-1].counted < SMALL_SHARE * max(one.counted for one in lower)
    )
    seen = with_sample(seen, reported)
    assert seen == (reported,)
    assert with_sample(seen, lower[0]) == seen


def test_too_little_concludes_nothing() -> None:
    known, _ = learn_from([Sample(COUNTED_MIN - 1, 5 * COUNTED_MIN)])
    assert known == START


def test_small_requests_do_not_count_against_large_ones() -> None:
    overhead = [Sample(100, 700) for _ in range(10)]
    known, _ = learn_from([*overhead, Sample(50_000, 55_000)])
    assert known.ratio == 1.1


@given(counts, counts, st.integers(min_value=1, max_value=100_000), ratios)
def test_the_local_ratio_is_the_report_and_what_was_added(counted: int, told: int, growth: int, ratio: float) -> None:
    reported = Reported(None, 1, 1, told, counted)  # type: ignore[arg-type]
    local = local_ratio(ratio, reported, growth)
    assert abs(local * (counted + growth) - (told + ratio * growth)) < 1e-3


@given(counts, counts, counts, st.none() | st.builds(Calibration, st.just("x"), ratios, st.just(0.1), counts))
def test_a_retry_is_at_most_half_of_what_was_refused(
    limit: int, counted: int, window: int, known: Calibration | None
) -> None:
    target = retry_target(limit, counted, window, known)
    assert 1 <= target <= counted / 2
    if known is None:
        assert target * calibration.PESSIMIST <= limit


@given(ratios, st.dictionaries(st.text(max_size=3), st.integers(min_value=0, max_value=100_000), max_size=6))
def test_parts_add_up_in_the_providers_tokens(ratio: float, tokens: dict[str, int]) -> None:
    budget = Budget(0, 0, 0, 0, 0, ratio=ratio)
    parts = budget.parts(tokens)
    assert sum(parts.values()) == budget.provider_tokens(sum(tokens.values()))
    assert all(abs(parts[name] - tokens[name] * ratio) <= 1 for name in tokens)


@given(st.integers(min_value=100, max_value=2_000_000), ratios, st.floats(min_value=0, max_value=1))
def test_contexts_within_the_target_are_within_the_limit(window: int, ratio: float, margin: float) -> None:
    policy = Policy(trigger=Trigger(ratio=0.8, tokens=max(1, window // 3)))
    budget = budget_for(policy, window, margin, ratio)
    assert budget.provider_tokens(budget.target) <= budget.limit <= window
    assert budget.provider_tokens(budget.threshold) <= min(budget.limit, int(window * 0.8), max(1, window // 3))
    assert budget.provider_tokens(budget.target + 1) > budget.limit - 1


DAYS = calibration.DAY * calibration.SAMPLE_DAYS
NOW = 1_000_000_000.0


@given(st.lists(samples, min_size=2, max_size=20), samples)
def test_a_single_calls_sample_changes_no_model(stream: list[Sample], odd: Sample) -> None:
    steady = [Sample(one.counted, one.counted * 2) for one in stream]
    alone = odd._replace(reported=odd.counted * 7)
    assert corroborated([*steady, alone], NOW) == corroborated(steady, NOW)
    again = alone._replace(at=NOW)
    assert {alone, again} <= set(corroborated([*steady, alone, again], NOW))


refusals = st.builds(Sample._replace, samples, least=st.booleans(), source=st.sampled_from("ab"))


@given(st.lists(refusals, max_size=20))
def test_a_sample_counts_if_another_agrees_with_it(stream: list[Sample]) -> None:
    def agree(one: Sample, other: Sample) -> bool:
        if one is other or (one.least and one.source == other.source):
            return False
        return max(one.ratio, other.ratio) <= calibration.AGREE * min(one.ratio, other.ratio)

    expected = [one for one in stream if any(agree(one, other) for other in stream)]
    assert list(corroborated(stream, NOW)) == expected


@given(st.lists(samples, min_size=2, max_size=20), st.floats(min_value=0, max_value=10 * DAYS))
def test_old_samples_stop_counting(stream: list[Sample], age: float) -> None:
    steady = [Sample(one.counted, one.counted * 2, at=NOW - age) for one in stream]
    known = relearn(replace(START, ratio=2.0, version=1), steady, OWN, NOW)
    assert known.ratio == (2.0 if age <= DAYS else 1.0)


@given(st.integers(256, 50_000), st.integers(0, 60_000), st.floats(min_value=0, max_value=20 * calibration.DAY))
def test_a_window_holds_until_it_is_old_or_more_was_accepted(window: int, accepted: int, age: float) -> None:
    known = with_claim(START, Claim(60_000, window, "a", NOW - age), believed=True)
    assert known.window(60_000, NOW) == (window if age <= calibration.WINDOW_DAYS * calibration.DAY else 60_000)
    known = with_accepted(known, accepted, NOW)
    assert (known.window_tokens is None) == (accepted > window)


@given(st.integers(256, 50_000), st.floats(min_value=0.5, max_value=2.0), st.sampled_from(["a", "b"]))
def test_a_claim_that_nothing_bears_out_waits_for_another_session(window: int, share: float, source: str) -> None:
    once = with_claim(START, Claim(60_000, window, "a", NOW), believed=False)
    assert once.window(60_000, NOW) == 60_000
    other = max(1, min(59_999, int(window * share)))
    twice = with_claim(once, Claim(60_000, other, source, NOW), believed=False)
    agrees = max(window, other) <= calibration.AGREE * min(window, other)
    assert (twice.window(60_000, NOW) < 60_000) == (source == "b" and agrees)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**6))
def test_a_believable_window_is_within_bounds(window: int, asked: int, counted: int, accepted: int) -> None:
    if believable(window, asked, counted, accepted):
        assert calibration.WINDOW_LEAST <= window < asked
        assert window >= accepted
        assert window >= counted // calibration.WINDOW_SHARE
        assert not believable(window, asked, counted, accepted, sent=window)


sizes = st.lists(st.integers(300, 60_000), min_size=POINTS_LEAST, max_size=POINTS_MAX, unique=True)


@given(sizes, st.floats(min_value=0.5, max_value=4.0), st.integers(0, 30_000), st.randoms(use_true_random=False))
def test_outside_tokens_are_the_intercept(counted: list[int], truth: float, outside: int, random: Random) -> None:
    noise = [1 + 0.01 * (2 * random.random() - 1) for _ in counted]
    points = [Point(one, round(one * truth * off) + outside) for one, off in zip(counted, noise, strict=True)]
    found = fit_outside(points)
    spread = 0.05 * truth * max(counted)
    if found is not None:
        assert abs(found - outside) <= 2 * spread + 2
    elif max(counted) >= GROWTH_LEAST * min(counted) and max(counted) - min(counted) >= 500:
        assert outside <= 256 + 10 * spread


@given(sizes, st.floats(min_value=0.5, max_value=4.0), st.integers(0, 30_000))
def test_reported_usage_is_within_the_planned_size_for_any_guess(
    counted: list[int], truth: float, outside: int
) -> None:
    """The usage reported by a view's own calls never exceeds its planned size, so that a wrong guess is safe."""
    own = initial_state("m", "heuristic", OWN)
    for one in counted:
        own = with_point(own, Point(one, round(one * truth) + outside), OWN)
    most = max(counted)
    for point in own.points:
        if not own.known.version or point.counted < SMALL_SHARE * most:
            continue
        planned = (own.outside or 0) + own.known.ratio * (1 + own.known.margin) * point.counted
        assert point.reported <= planned * (1 + 1e-9) + 1 or not Sample(point.counted, point.reported).sensible


@given(st.integers(1_000, 150_000), st.lists(st.integers(20_000, 21_000), min_size=POINTS_MAX, max_size=40))
def test_learned_outside_tokens_stay_while_calls_are_alike(outside: int, counted: list[int]) -> None:
    own = initial_state("m", "heuristic", OWN)
    for one in range(3_000, 20_000, 1_000):
        own = with_point(own, Point(one, one + outside), OWN)
    for one in counted:
        own = with_point(own, Point(one, one + outside), OWN)
        assert own.outside == outside
    bare = with_point(own, Point(20_000, 200), OWN)  # fewer than such a call could have used
    assert bare.outside is None


@given(sizes, st.integers(1_000, 30_000))
def test_stated_outside_tokens_are_not_learned(counted: list[int], outside: int) -> None:
    assert fit_outside([Point(one, one + outside, outside) for one in counted]) is None


@given(
    st.integers(1_000, 1_000_000),
    st.floats(0.25, 4.0),
    st.floats(0.05, 0.95),
)
def test_a_tightened_target_is_found_again_by_its_window_at_any_ratio(window: int, ratio: float, share: float) -> None:
    """The worker plans a retry's compaction by the window that its report stored, and another ratio."""
    tightened = budget_for(Policy(), window, 0.02, ratio).tightened(int(share * window * 0.8 / ratio) or 1)
    whole = budget_for(Policy(), window, 0.02, 1.0)
    again = whole.tightened_to_window(tightened.used_window)
    wanted = min(tightened.target, whole.target)
    assert again.target <= wanted <= again.target + 2 + again.target // 100
    assert again.goal <= again.threshold <= again.target

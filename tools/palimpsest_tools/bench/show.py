"""Output of `bench`: tables for people, JSON lines for machines."""

from collections.abc import Iterable, Sequence
from typing import Final

from app.core.log.events import Json
from app.core.tokens.models import CacheProfile
from palimpsest_tools.bench import clients
from palimpsest_tools.bench.outcomes import APPEND_ONLY, OURS, KeptValues, RuleOutcome, rule_of
from palimpsest_tools.bench.play import SessionOutcome
from palimpsest_tools.output import Column, counted, table

LOSSES_SHOWN: Final = 15
_SESSION_CHARS: Final = 20
_RESUMED_TOKENS: Final = 60_000
"""Size of prompt and tools above which a session was probably resumed."""
_LOSS_MIN: Final = 0.005
"""Least difference, of the bill or of the share of values, that is called a loss."""
_NO_LOSS: Final = "in no session is a rule that fits the window cheaper, or does it keep more of the used values"


def lines(outcomes: Sequence[SessionOutcome], notes: Iterable[str]) -> list[str]:
    """Return the whole report."""
    compared = [one for one in outcomes if one.outcomes]
    parts = [
        *_heading(outcomes, compared),
        *(["", "SESSIONS", *_sessions(compared)] if compared else []),
        *(["", "RULES, in all of these sessions", *_rules(compared)] if compared else []),
        *(["", "WHERE PALIMPSEST LOSES", *_losses(compared)] if compared else []),
        "",
        "NOTES",
        *(f"* {note}" if not note.startswith(" ") else note for note in (*_notes(outcomes), *notes)),
    ]
    return parts


def _heading(outcomes: Sequence[SessionOutcome], compared: Sequence[SessionOutcome]) -> list[str]:
    calls = sum(one.recording.calls for one in compared)
    found = (
        f"{len(compared)} of {len(outcomes)} sessions" if len(compared) < len(outcomes) else f"{len(compared)} sessions"
    )
    return [
        f"{found} with {counted(calls, 'call')}, played call by call through a server on this machine. Nothing was",
        "sent anywhere else, and no model was called: the answers are the recorded ones, the bills are computed.",
    ]


def _sessions(compared: Sequence[SessionOutcome]) -> list[str]:
    columns = [
        Column("session"),
        Column("agent"),
        *(Column(name, figures=True) for name in ("calls", "window", "prompt+tools", "append-only", "too long")),
        *(
            Column(name, figures=True)
            for name in ("own rule", "recorded", OURS, "to append-only", "to own rule", "to recorded")
        ),
    ]
    rows = []
    for one in compared:
        ours, base, own = one.outcomes[OURS], one.outcomes[APPEND_ONLY], _own(one)
        rows.append(
            [
                _short(one.recording.id),
                clients.AGENT_NAMES.get(one.recording.agent or "", "unknown"),
                f"{one.recording.calls:,}",
                f"{one.window:,}",
                "unknown" if one.outside is None else f"{one.outside:,}",
                f"{base.billed:,.0f}",
                f"{base.over_window:,}",
                "-" if own is None else f"{own.billed:,.0f}",
                f"{one.recorded.billed:,.0f}" if one.recorded.calls == one.recording.calls else "-",
                f"{ours.billed:,.0f}",
                _change(ours.billed, base.billed),
                "-" if own is None else _change(ours.billed, own.billed),
                _change(ours.billed, one.recorded.billed) if one.recorded.calls == one.recording.calls else "-",
            ]
        )
    if len(compared) > 1:
        rows.append(_sum_of_sessions(compared))
    return table(columns, rows)


def _sum_of_sessions(compared: Sequence[SessionOutcome]) -> list[str]:
    """Return the last row; a sum that some sessions lack is left out."""
    ours, base = (sum(one.outcomes[name].billed for one in compared) for name in (OURS, APPEND_ONLY))
    known = [rule.billed for one in compared if (rule := _own(one)) is not None]
    own = sum(known) if len(known) == len(compared) else None
    real = sum(one.recorded.billed for one in compared)
    whole = all(one.recorded.calls == one.recording.calls for one in compared)
    return [
        *("all", "", f"{sum(one.recording.calls for one in compared):,}", "", "", f"{base:,.0f}"),
        f"{sum(one.outcomes[APPEND_ONLY].over_window for one in compared):,}",
        "" if own is None else f"{own:,.0f}",
        f"{real:,.0f}" if whole else "",
        f"{ours:,.0f}",
        _change(ours, base),
        "" if own is None else _change(ours, own),
        _change(ours, real) if whole else "",
    ]


def _own(one: SessionOutcome) -> RuleOutcome | None:
    """Return the outcome of the rule of the session's own agent, if it has one."""
    return one.outcomes.get(rule_of(one.recording.agent)) if one.recording.agent else None


def rules_in(compared: Sequence[SessionOutcome]) -> list[str]:
    """Return the names of all rules, ours first."""
    return list(dict.fromkeys(name for one in compared for name in one.outcomes))


def _rules(compared: Sequence[SessionOutcome]) -> list[str]:
    columns = [
        Column("rule"),
        *(
            Column(name, figures=True)
            for name in ("sessions", "billed", "to append-only", "Palimpsest to it", "worst session")
        ),
        *(Column(name, figures=True) for name in ("read", "write", "fresh", "summaries", "too long")),
        *(Column(name, figures=True) for name in ("values kept", "each once", "of results")),
    ]
    return table(columns, [_rule(name, compared) for name in rules_in(compared)])


def _rule(name: str, compared: Sequence[SessionOutcome]) -> list[str]:
    known = [one.outcomes for one in compared if name in one.outcomes]
    found = [rules[name] for rules in known]
    total, base, ours = (sum(rules[other].billed for rules in known) for other in (name, APPEND_ONLY, OURS))
    worst = max((rules[OURS].billed / rules[name].billed - 1 for rules in known if rules[name].billed), default=0.0)
    uses, unique, results = totals([rule.kept for rule in found])
    return [
        name,
        str(len(known)),
        f"{total:,.0f}",
        "" if name == APPEND_ONLY else _change(total, base),
        *(("", "") if name == OURS else (_change(ours, total), f"{worst:+.1%}")),
        *(f"{sum(getattr(rule.bill, f'{part}_tokens') for rule in found):,}" for part in ("read", "write", "fresh")),
        str(sum(rule.summaries for rule in found)),
        str(sum(rule.over_window for rule in found)),
        *(_share(*one) for one in (uses, unique, results)),
    ]


def totals(kept: Sequence[KeptValues]) -> tuple[tuple[float, int], ...]:
    """Return the visible and all values: of every use, of every different value, and of those in results only."""
    return (
        (sum(one.visible for one in kept), sum(one.uses for one in kept)),
        (sum(one.unique_visible for one in kept), sum(len(one.unique) for one in kept)),
        (sum(one.in_results_visible for one in kept), sum(one.in_results for one in kept)),
    )


def losses(compared: Sequence[SessionOutcome]) -> list[tuple[float, SessionOutcome, str]]:
    """Return the sessions and rules in which a rule that fits the window is cheaper or keeps more values.

    Each has the difference of the bills, the largest first.
    """
    found = []
    for one in compared:
        ours = one.outcomes[OURS]
        for name, rule in one.outcomes.items():
            if name == OURS or rule.over_window or not rule.billed:
                continue
            dearer = ours.billed / rule.billed - 1
            lost = _part(rule.kept) - _part(ours.kept)
            if dearer > _LOSS_MIN or lost > _LOSS_MIN:
                found.append((dearer, one, name))
    return sorted(found, key=lambda row: -row[0])


def _losses(compared: Sequence[SessionOutcome]) -> list[str]:
    found = losses(compared)
    pairs = [rule for one in compared for name, rule in one.outcomes.items() if name != OURS]
    too_long = sum(rule.over_window > 0 for rule in pairs)
    of_pairs = f"{too_long} of {counted(len(pairs), 'pair')} of a session and a rule"
    left_out = f"Left out are {of_pairs}: calls exceed the window there."
    if not found:
        fits = "no other rule fits the window in any session" if too_long == len(pairs) else _NO_LOSS
        return [fits, *([left_out] if 0 < too_long < len(pairs) else [])]
    columns = [
        Column("session"),
        Column("rule"),
        *(Column(name, figures=True) for name in ("its bill", OURS, "difference", "it keeps", "Palimpsest keeps")),
    ]
    rows = []
    for dearer, one, name in found[:LOSSES_SHOWN]:
        rule, ours = one.outcomes[name], one.outcomes[OURS]
        rows.append(
            [
                _short(one.recording.id),
                name,
                f"{rule.billed:,.0f}",
                f"{ours.billed:,.0f}",
                f"{dearer:+.1%}",
                f"{_part(rule.kept):.1%}",
                f"{_part(ours.kept):.1%}",
            ]
        )
    more = [f"... and {len(found) - LOSSES_SHOWN} more"] if len(found) > LOSSES_SHOWN else []
    return [*table(columns, rows), *more, *([left_out] if too_long else [])]


def _notes(outcomes: Sequence[SessionOutcome]) -> list[str]:
    rules = {price_text(one.rules): None for one in outcomes}
    notes = [
        "Bills are in input tokens at the full price. Assumed prices: " + "; ".join(rules) + ".",
        "Own rule: the compaction of the session's own agent, from its published source; every rule is simulated on"
        f" the recorded conversation. A summary has {clients.SUMMARY_TOKENS:,} tokens, at the price of output, and"
        f" keeps {clients.SUMMARY_KEEPS:.0%} of the values in it: as in 17 recorded compactions.",
        "Recorded: the input that the provider really billed, by the usage in the log, in the window that the agent"
        " really had. It has the agent's own compactions, but not the requests that wrote their summaries.",
        "Too long: calls that exceed the window. Append-only is billed for them, too, although no model takes them.",
        "Values: names, paths and numbers in the arguments of tool calls that stood in the log before. Kept: visible in"
        " the request that used them. Each once: different values, visible whenever used. Of results: only seen there.",
        "Not billed, for any rule: further calls for content that a request lacked; the model's answers.",
    ]
    if any(one.outside is None for one in outcomes):
        notes.append("Prompt+tools unknown: the log has no usage that shows their size. They are counted as nothing.")
    notes += [
        f"{_short(one.recording.id)} was probably resumed: its first request had {one.outside:,} tokens that are not in"
        " the log. Every rule is billed for them in every request; the agent could compact them, so that the"
        " recorded bill cannot be compared."
        for one in outcomes
        if (one.outside or 0) > _RESUMED_TOKENS
    ]
    skipped = [
        name
        for agent, name in clients.AGENT_NAMES.items()
        if any(rule_of(agent) not in one.outcomes for one in outcomes if one.outcomes)
    ]
    if skipped:
        notes.append(
            f"Not in every session: the compaction of {', '.join(skipped)}, where prompt and tools take more than half"
            " of the size at which it begins."
        )
    notes += [
        f"{_short(one.recording.id)} is not compared: {one.failure.where}: {one.failure.detail}"
        + (f" (the agent's own prompt and tools have {one.outside:,} tokens)" if one.outside else "")
        for one in outcomes
        if one.failure is not None
    ]
    return notes + [f"{_short(one.recording.id)}: {note}" for one in outcomes for note in one.recording.notes]


def price_text(rules: CacheProfile) -> str:
    """Return the prices of a cache in words."""
    kept = f"{rules.ttl_seconds // 60} minutes" if rules.ttl_seconds < 3_600 else f"{rules.ttl_seconds // 3_600} h"
    return f"cached {rules.read_price:g}, written {rules.write_price:g}, kept for {kept}"


def _short(id: str) -> str:
    return id if len(id) <= _SESSION_CHARS else f"{id[: _SESSION_CHARS - 1]}…"


def _change(value: float, base: float) -> str:
    return f"{value / base - 1:+.1%}" if base else "-"


def _share(visible: float, every: int) -> str:
    return f"{visible / every:.1%} of {every:,}" if every else "-"


def _part(kept: KeptValues) -> float:
    return kept.visible / kept.uses if kept.uses else 1.0


def session_json(one: SessionOutcome) -> dict[str, Json]:
    """Return a session's line of `--json`."""
    failure = None if one.failure is None else one.failure.as_json()
    return {
        "session": one.recording.id,
        "agent": one.recording.agent,
        "model": one.recording.model,
        "calls": one.recording.calls,
        "window_tokens": one.window,
        "prompt_and_tools_tokens": one.outside,
        "prices": {"read": one.rules.read_price, "write": one.rules.write_price, "ttl_seconds": one.rules.ttl_seconds},
        "recorded": {
            "calls": one.recorded.calls,
            "input_tokens": one.recorded.tokens,
            "billed": round(one.recorded.billed, 1),
        },
        "own_rule": rule_of(one.recording.agent) if one.recording.agent else None,
        "rules": {name: rule_json([rule]) for name, rule in one.outcomes.items()},
        "failure": failure,
        "notes": list(one.recording.notes),
    }


def rule_json(found: Sequence[RuleOutcome]) -> dict[str, Json]:
    """Return a rule's outcome in one or more sessions."""
    uses, unique, results = totals([rule.kept for rule in found])
    return {
        "sessions": len(found),
        "billed": round(sum(rule.billed for rule in found), 1),
        "read_tokens": sum(rule.bill.read_tokens for rule in found),
        "write_tokens": sum(rule.bill.write_tokens for rule in found),
        "fresh_tokens": sum(rule.bill.fresh_tokens for rule in found),
        "largest_tokens": max((rule.peak for rule in found), default=0),
        "too_long": sum(rule.over_window for rule in found),
        "summaries": sum(rule.summaries for rule in found),
        "values": {
            name: {"visible": round(visible, 2), "used": used}
            for name, (visible, used) in (("every_use", uses), ("each_once", unique), ("results_only", results))
        },
    }


def total_json(outcomes: Sequence[SessionOutcome], notes: Sequence[str]) -> dict[str, Json]:
    """Return the last line of `--json`."""
    compared = [one for one in outcomes if one.outcomes]
    return {
        "total": {
            "sessions": len(compared),
            "not_compared": len(outcomes) - len(compared),
            "rules": {
                name: rule_json([one.outcomes[name] for one in compared if name in one.outcomes])
                for name in rules_in(compared)
            },
            "losses": [
                {"session": one.recording.id, "rule": name, "difference": round(dearer, 4)}
                for dearer, one, name in losses(compared)
            ],
            "notes": list(notes),
        }
    }

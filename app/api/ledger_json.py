"""Ledgers as JSON."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from app.core.audit.bill import Bill
from app.core.audit.ledger import LedgerLine
from app.core.audit.ledger_totals import Account, CurrencyTotals, Totals, money_of
from app.core.lexicon.times import time_text
from app.core.log.events import Json
from app.services.ledger import BilledSums, TenantLedger, ViewLedger
from app.store.ledger import LedgerRow


def view_ledger_json(found: ViewLedger) -> dict[str, Json]:
    """Return the ledger of a view."""
    return {
        "calls": [_line(row, line, found.causes) for row, line in found.calls],
        "epochs": [_account(one) for one in found.epochs],
        "totals": {"partial": found.partial, **_totals(found.totals)},
    }


def tenant_ledger_json(found: TenantLedger) -> dict[str, Json]:
    """Return the sums of a tenant's calls, by model and in total."""
    by_model = groupby(found.sums, lambda one: one.sums.model)
    return {
        "since": time_text(found.since),
        "until": time_text(found.until),
        "items": [{"model": model, **_sums(list(members))} for model, members in by_model],
        "totals": _sums(found.sums),
    }


def _line(row: LedgerRow, line: LedgerLine, causes: Mapping[int, str]) -> dict[str, Json]:
    usage, prices = line.call.usage, line.call.prices
    return {
        "call_id": str(row.call_id),
        "created_at": time_text(row.created_at),
        "epoch": row.epoch,
        "model": row.model,
        "format": row.format,
        "estimate": row.estimate,
        "left_out_tokens": row.evicted_tokens,
        "idle_seconds": None if line.idle is None else round(line.idle, 3),
        "expected": _parts(line.expected),
        "reported": None
        if usage is None
        else {
            "input_tokens": usage.input,
            "read_tokens": usage.read,
            "write_tokens": usage.write,
            "output_tokens": usage.output,
        },
        "failed": line.call.failed,
        "billed": round(line.actual.billed, 1),
        "money": _rounded(money_of(prices, line.actual.billed, usage.output if usage else None)),
        "currency": prices.currency,
        "missed_tokens": line.missed,
        "cause": line.cause,
        "epoch_cause": causes.get(row.epoch) if line.cause in ("epoch", "tools", "system_prompt") else None,
        "diverges_at": line.diverges_at,
    }


def _account(account: Account) -> dict[str, Json]:
    money = {name: money_of(account.prices, getattr(account, name)) for name in ("cost", "gain", "net")}
    return {
        "epoch": account.epoch.number,
        "cause": account.epoch.cause,
        "opened_by": account.opened_by,
        "calls": account.calls,
        "calls_since": account.calls_since,
        "rewritten_tokens": account.rewritten,
        "removed_tokens": account.removed,
        **{name: round(getattr(account, name), 1) for name in money},
        "money": None
        if money["net"] is None
        else {"currency": account.prices.currency, **{name: _rounded(value) for name, value in money.items()}},
    }


def _totals(sums: Totals) -> dict[str, Json]:
    return {
        "calls": sums.calls,
        "unreported_calls": sums.unreported,
        "failed_calls": sums.failed,
        "input": {**_parts(sums.actual), "billed": round(sums.actual.billed, 1)},
        "expected": {**_parts(sums.expected), "billed": round(sums.expected.billed, 1)},
        "output_tokens": sums.output,
        "append_only": {
            **_parts(sums.append_only),
            "billed": round(sums.append_only.billed, 1),
            "calls_beyond_window": sums.beyond_window,
        },
        "saved": round(sums.append_only.billed - sums.actual.billed, 1),
        "money": [_money(currency, amounts) for currency, amounts in sums.money.items()],
    }


def _money(currency: str, amounts: CurrencyTotals) -> dict[str, Json]:
    saved = amounts.append_only - amounts.billed
    figures = {"billed": amounts.billed, "append_only": amounts.append_only, "saved": saved}
    return {"currency": currency, **{name: _rounded(value) for name, value in figures.items()}}


def _parts(bill: Bill) -> dict[str, Json]:
    return {
        "tokens": bill.tokens,
        "read_tokens": bill.read,
        "write_tokens": bill.write,
        "fresh_tokens": bill.fresh,
    }


_SUMMED: Final = (
    "calls",
    "overflows",
    "unreported_tokens",
    "input_tokens",
    "read_tokens",
    "write_tokens",
    "output_tokens",
    "left_out_tokens",
)


def _sums(members: Sequence[BilledSums]) -> dict[str, Json]:
    money: dict[str, float] = {}
    for one in members:
        amount = money_of(one.prices, one.bill.billed, one.sums.output_tokens)
        if amount is not None:
            money[one.prices.currency] = money.get(one.prices.currency, 0.0) + amount
    return {
        **{name: sum(getattr(one.sums, name) for one in members) for name in _SUMMED},
        "reported_calls": sum(one.sums.reported for one in members),
        "billed": round(sum(one.bill.billed for one in members), 1),
        "money": [{"currency": currency, "billed": _rounded(amount)} for currency, amount in money.items()],
    }


def _rounded(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 6)

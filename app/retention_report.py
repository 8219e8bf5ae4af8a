"""The output of `palimpsest retention`, for an operator who sees every tenant's rows."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime

from app.core.errors import InvalidRequest, NotFound
from app.core.log.turns import Lifetimes
from app.services.retention import RetentionRules, RuleDue
from app.store import retention
from app.store.engine import Database, acting_for


async def report_lines(
    database: Database, tenant: str, changes: Sequence[str], names: int | None
) -> AsyncIterator[str]:
    """Apply `changes` (`RULE=DAYS`) to a tenant's rules, then yield the rules or, with `names`, what they would erase
    now, with up to that number of sessions. Raises NotFound or InvalidRequest."""
    wanted = dict(map(_change, changes))
    known = {one.name: one.tenant_id for one in await retention.tenants(database)}
    if tenant not in known:
        raise NotFound(f"there is no tenant {tenant!r}", tenant=tenant)
    retaining = RetentionRules(database)
    with acting_for(known[tenant]):
        rules = (await retaining.get(known[tenant])).rules
        if wanted:
            rules = (await retaining.put(known[tenant], replace(rules, **wanted))).rules
        if names is None:
            for name, days in asdict(rules).items():
                yield f"{name}  {'forever' if days is None else days}"
            return
        found = await retaining.preview(known[tenant], names)
    for one in found.rules:
        yield _line(one)
    for session in found.items:
        times = f"created {_time(session.created_at)}  used {_time(session.used_at)}"
        yield f"session {session.id}  {session.rule}  {times}"


def _change(text: str) -> tuple[str, int]:
    """Parse a change of a rule. Raises InvalidRequest."""
    name, _, days = text.partition("=")
    rules = [one.name for one in fields(Lifetimes)]
    if name not in rules or not days.isascii() or not days.isdigit():
        raise InvalidRequest(f"{text!r} must have the form idle_days=180; the rules are {', '.join(rules)}")
    return name, int(days)


def _line(one: RuleDue) -> str:
    number = f"{'at least ' if one.more else ''}{one.count}"
    if one.oldest is None or one.newest is None:
        return f"{one.rule}  {number}"
    return f"{one.rule}  {number}  from {_time(one.oldest)} to {_time(one.newest)}"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%MZ}"

"""The command `palimpsest retention`, for an operator who sees every tenant's rows."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import DatabaseUrl, DataDir, load_settings, require_database, run_on_database
from app.core.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from app.store.engine import Database
    from app.wings.retention.rules import RuleDue


def retention(
    tenant: Annotated[str, typer.Option(help="Tenant whose data it is.")] = "default",
    rule: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="RULE=DAYS", help="Change a rule, as idle_days=180; 0: no rule. Repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be erased now; erase nothing.")] = False,
    sessions_max: Annotated[
        int, typer.Option("--names", min=1, help="Number of sessions that a dry run lists, oldest first.")
    ] = 20,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Show or change how many days a tenant's data is kept."""

    async def use(database: "Database") -> None:
        async for line in set_and_report(database, tenant, rule or (), sessions_max if dry_run else None):
            typer.echo(line)

    run_on_database(require_database(load_settings(data_dir=data_dir, database_url=database_url)), use)


async def set_and_report(
    database: "Database", tenant: str, changes: Sequence[str], sessions_max: int | None
) -> AsyncIterator[str]:
    """Store the `changes` (`RULE=DAYS`) and yield the rules; with `sessions_max`, yield the data that is due and at
    most that number of sessions. Raises NotFound or InvalidRequest."""
    from app.store.engine import acting_for
    from app.wings.retention import store
    from app.wings.retention.service import DataRetention

    wanted = dict(map(_change, changes))
    if wanted and sessions_max is not None:
        raise InvalidRequest("a dry run uses the stored rules: --set and --dry-run exclude each other")
    known = await store.tenants(database)
    if tenant not in known:
        raise NotFound(f"there is no tenant {tenant!r}", tenant=tenant)
    service = DataRetention(database)
    with acting_for(known[tenant]):
        rules = (await service.get(known[tenant])).rules
        if wanted:
            rules = (await service.put(known[tenant], replace(rules, **wanted))).rules
        if sessions_max is None:
            for name, days in asdict(rules).items():
                yield f"{name}  {'no rule' if days is None else days}"
            return
        found = await service.preview(known[tenant], sessions_max)
    for one in found.rules:
        yield _line(one)
    for session in found.items:
        times = f"created {_time(session.created_at)}  used {_time(session.used_at)}"
        yield f"session {session.id}  {session.rule}  {times}"


def _change(text: str) -> tuple[str, int]:
    """Parse a change of a rule. Raises InvalidRequest."""
    from app.wings.retention.rules import RetentionDays

    name, _, days = text.partition("=")
    rules = [one.name for one in fields(RetentionDays)]
    if name not in rules or not days.isascii() or not days.isdigit():
        raise InvalidRequest(f"{text!r} must have the form idle_days=180; the rules are {', '.join(rules)}")
    return name, int(days)


def _line(one: "RuleDue") -> str:
    number = f"{'at least ' if one.more else ''}{one.count}"
    if one.oldest is None or one.newest is None:
        return f"{one.rule}  {number}"
    return f"{one.rule}  {number}  from {_time(one.oldest)} to {_time(one.newest)}"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%MZ}"

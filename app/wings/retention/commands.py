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
    from app.wings.retention.service import RuleDue


def retention(
    tenant: Annotated[str, typer.Option(help="Tenant whose data it is.")] = "default",
    rule: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="RULE=DAYS", help="Change a rule, as idle_days=180; 0: no limit. Repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be erased now; erase nothing.")] = False,
    names: Annotated[int, typer.Option(min=1, help="Number of sessions that a dry run lists, oldest first.")] = 20,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Show or change how many days a tenant's data is kept."""

    async def use(database: "Database") -> None:
        async for line in report_lines(database, tenant, rule or (), names if dry_run else None):
            typer.echo(line)

    run_on_database(require_database(load_settings(data_dir=data_dir, database_url=database_url)), use)


async def report_lines(
    database: "Database", tenant: str, changes: Sequence[str], names: int | None
) -> AsyncIterator[str]:
    """Apply `changes` (`RULE=DAYS`) to a tenant's rules, then yield the rules or, with `names`, the data that is due,
    with up to that number of sessions. Raises NotFound or InvalidRequest."""
    from app.store.engine import acting_for
    from app.wings.retention import store
    from app.wings.retention.service import RetentionRules

    wanted = dict(map(_change, changes))
    known = await store.tenants(database)
    if tenant not in known:
        raise NotFound(f"there is no tenant {tenant!r}", tenant=tenant)
    service = RetentionRules(database)
    with acting_for(known[tenant]):
        rules = (await service.get(known[tenant])).rules
        if wanted:
            rules = (await service.put(known[tenant], replace(rules, **wanted))).rules
        if names is None:
            for name, days in asdict(rules).items():
                yield f"{name}  {'forever' if days is None else days}"
            return
        found = await service.preview(known[tenant], names)
    for one in found.rules:
        yield _line(one)
    for session in found.items:
        times = f"created {_time(session.created_at)}  used {_time(session.used_at)}"
        yield f"session {session.id}  {session.rule}  {times}"


def _change(text: str) -> tuple[str, int]:
    """Parse a change of a rule. Raises InvalidRequest."""
    from app.wings.retention.rules import Lifetimes

    name, _, days = text.partition("=")
    rules = [one.name for one in fields(Lifetimes)]
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

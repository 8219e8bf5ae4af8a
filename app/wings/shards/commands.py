"""The command `palimpsest distribute`."""

from typing import Annotated

import typer

from app.cli.options import DatabaseUrl, load_settings, require_url, run, stop
from app.runtime import serve as serving
from app.wings.shards import SHARDS


def distribute(
    database_url: DatabaseUrl = None,
    shards: Annotated[int, typer.Option(min=1, help="Number of shards; it cannot be changed later.")] = SHARDS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the statements and change nothing.")] = False,
    only_check: Annotated[
        bool, typer.Option("--check", help="Show for a distributed database to which shards each hot statement goes.")
    ] = False,
) -> None:
    """Distribute a migrated database's sessions over Citus workers, if every hot statement then uses one shard."""
    from app.wings.shards import distribute as work

    async def distributed() -> None:
        await serving.prepare(url, upgrade=False)
        try:
            if only_check:
                routes = await work.check(url)
                for one in routes:
                    typer.echo(f"{'one shard' if one.to_one_shard else 'not one shard':<13}  {one.name}: {one.reason}")
                if not all(one.to_one_shard for one in routes):
                    stop("not every hot statement goes to one shard")
            elif dry_run:
                typer.echo("".join(f"{step};\n" for step in await work.plan_statements(url, shards)), nl=False)
            else:
                await work.distribute(url, shards)
        except work.CannotDistribute as error:
            stop(str(error))

    url = require_url(load_settings(database_url=database_url))
    run(distributed())

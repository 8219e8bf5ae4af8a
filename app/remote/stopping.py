"""How a command that cannot go on ends."""

from typing import NoReturn

import typer


def stop(message: str, status: int = 1) -> NoReturn:
    """End the command with a line on standard error."""
    typer.echo(f"palimpsest: {message}", err=True)
    raise typer.Exit(status)

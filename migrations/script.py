"""Running of a whole SQL file within a migration."""

from pathlib import Path

from sqlalchemy.engine import Connection


def run_script(connection: Connection, path: Path) -> None:
    """Run all statements of a file in the migration's transaction; a prepared statement would allow only one."""
    script = path.read_text()
    connection.connection.run_async(lambda driver: driver.execute(script))  # type: ignore[attr-defined]  # asyncpg's

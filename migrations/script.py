"""Running a whole SQL file inside a migration."""

from pathlib import Path

from sqlalchemy.engine import Connection


def run_script(connection: Connection, path: Path) -> None:
    """Run every statement of a file in the migration's transaction (prepared statements take one at a time)."""
    script = path.read_text()
    connection.connection.run_async(lambda driver: driver.execute(script))  # type: ignore[attr-defined]  # asyncpg's

"""Forks: sessions that share the beginning of another session's log, and its summaries."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the columns; code of the earlier version creates no forks."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0007_forks.sql")


def downgrade() -> None:
    """Remove the columns. Forks lose the events they share with their parents, so erase them first."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0007_forks_down.sql")

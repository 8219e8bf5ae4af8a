"""Counts of the workers' work: workers listen on no port, so the API processes report it."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the table, empty: work done by code of the earlier version is not counted."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0020_work.sql")


def downgrade() -> None:
    """Remove the table: counts start again at the next upgrade."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0020_work_down.sql")

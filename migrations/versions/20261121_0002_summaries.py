"""Summaries by span, the runs that write them, and redactions."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the tables; code of the earlier version keeps working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0002_summaries.sql")


def downgrade() -> None:
    """Remove the tables. Redacted events stay redacted."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0002_summaries_down.sql")

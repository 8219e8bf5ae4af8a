"""Outcomes of calls, providers' token counts, and evictions stored with the epoch that decided on them."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the columns; code of the earlier version keeps working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0003_audit.sql")


def downgrade() -> None:
    """Remove the columns. Outcomes and counts that providers reported are lost."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0003_audit_down.sql")

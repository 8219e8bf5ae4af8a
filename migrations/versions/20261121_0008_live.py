"""Layers, which an agent shows while it works, and explicit turns."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the table and columns; code of the earlier version keeps working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0008_live.sql")


def downgrade() -> None:
    """Remove them. Recorded calls that showed layers can no longer be rendered as they were."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0008_live_down.sql")

"""Announcements that became an event are erased when it is redacted."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Allow the erasure of announcements; code of the earlier version keeps working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0015_announced.sql")


def downgrade() -> None:
    """Forbid it again."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0015_announced_down.sql")

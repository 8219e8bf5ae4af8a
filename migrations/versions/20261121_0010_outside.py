"""Tokens that a client sends in addition to its requests, and calibration per view."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the columns; code of the earlier version keeps working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0010_outside.sql")


def downgrade() -> None:
    """Remove the columns. Their values are learned again."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0010_outside_down.sql")

"""A compaction run records the context that waits for it."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the columns; code of the earlier version keeps working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0012_wanted.sql")


def downgrade() -> None:
    """Remove the columns. Nothing is lost."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0012_wanted_down.sql")

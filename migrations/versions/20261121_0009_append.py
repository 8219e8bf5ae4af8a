"""An append accesses its session's row only once."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the column; code of the earlier version keeps working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0009_append.sql")


def downgrade() -> None:
    """Remove the column. Nothing is lost."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0009_append_down.sql")

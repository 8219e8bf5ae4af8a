"""What an agent shows while it works, and where turns begin and end."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add them; code that knows nothing of them goes on working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0008_live.sql")


def downgrade() -> None:
    """Remove them. Recorded calls that showed layers no longer render as they did."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0008_live_down.sql")

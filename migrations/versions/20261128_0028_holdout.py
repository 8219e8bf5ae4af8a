"""Groups of sessions of which one is held out of reduction."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the column, empty; code of the earlier version keeps working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0028_holdout.sql")


def downgrade() -> None:
    """Remove the column: what held-out sessions cost is known as that of observed calls only."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0028_holdout_down.sql")

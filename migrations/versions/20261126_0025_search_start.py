"""The first event of each search index."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the column: all indexes begin with the first event so far."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0025_search_start.sql")


def downgrade() -> None:
    """Remove the column. Indexes that begin later are emptied: the earlier version would not complete them."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0025_search_start_down.sql")

"""The search index."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the index, empty: a session is indexed when it is first searched."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0004_recall.sql")


def downgrade() -> None:
    """Remove the index, which can be rebuilt from the log."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0004_recall_down.sql")

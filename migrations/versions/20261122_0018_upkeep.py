"""A trigger checks fewer updates, a job notifies once, and the search index adds its terms in batches."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Change functions and triggers, but no stored data: code of the earlier version keeps working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0018_upkeep.sql")


def downgrade() -> None:
    """Restore the earlier functions and triggers. Nothing is lost."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0018_upkeep_down.sql")

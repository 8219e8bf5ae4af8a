"""A trigger looks at fewer updates, a job is told of once, and the search index takes its terms many at a time."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Change how, and nothing of what is stored: code that knows nothing of it goes on working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0018_upkeep.sql")


def downgrade() -> None:
    """Do it as before. Nothing is lost."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0018_upkeep_down.sql")

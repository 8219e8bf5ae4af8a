"""What workers have done, in numbers: they listen on no port, so the API processes tell of it."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the table, empty: code that knows nothing of it goes on working, and is not counted."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0020_work.sql")


def downgrade() -> None:
    """Drop it: the numbers begin anew at the next upgrade."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0020_work_down.sql")

"""What is sent beside a request is known, and what one call says holds for its own view."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add it; code that knows nothing of it goes on working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0010_outside.sql")


def downgrade() -> None:
    """Remove it. What was learnt by it is learnt again."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0010_outside_down.sql")

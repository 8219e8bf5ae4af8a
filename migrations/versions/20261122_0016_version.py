"""Whether a session has changed is told by one number."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add it, kept by a trigger: code that knows nothing of it changes it all the same."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0016_version.sql")


def downgrade() -> None:
    """Drop it."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0016_version_down.sql")

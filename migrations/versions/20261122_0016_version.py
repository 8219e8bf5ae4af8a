"""A single number that tells whether a session has changed."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the version. A trigger raises it, so changes by code of the earlier version count too."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0016_version.sql")


def downgrade() -> None:
    """Remove the version."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0016_version_down.sql")

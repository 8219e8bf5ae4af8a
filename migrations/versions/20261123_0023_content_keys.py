"""The keys with which tenants' contents are sealed."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the table, empty: nothing is sealed until an operator sets a key."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0023_content_keys.sql")


def downgrade() -> None:
    """Remove the table, unless a key was ever created: the earlier version could not read sealed contents."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0023_content_keys_down.sql")

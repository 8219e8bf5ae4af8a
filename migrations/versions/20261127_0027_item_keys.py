"""Keys that seal compaction items."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the table, empty: a tenant's key is made with its first item."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0027_item_keys.sql")


def downgrade() -> None:
    """Remove the table: items that clients hold cannot be read again."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0027_item_keys_down.sql")

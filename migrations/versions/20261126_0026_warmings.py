"""Requests that keep the provider's cache of a call."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the table, empty."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0026_warmings.sql")


def downgrade() -> None:
    """Remove the table: in the earlier version ledgers have no warmings."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0026_warmings_down.sql")

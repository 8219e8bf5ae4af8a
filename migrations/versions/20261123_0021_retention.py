"""Retention rules of tenants, and erasures of sessions by their metadata, with a receipt."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the tables, empty: nothing is erased until a rule or an erasure is stored."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0021_retention.sql")


def downgrade() -> None:
    """Remove the tables: rules and receipts are lost, and waiting erasures are not done."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0021_retention_down.sql")

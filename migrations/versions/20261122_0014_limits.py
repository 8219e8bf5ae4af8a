"""Expiry, session prefix and last use of keys, and tenants' spending on providers."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the columns and the table. Code of the earlier version ignores a key's expiry and prefix: create no such key
    before all processes are of this version."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0014_limits.sql")


def downgrade() -> None:
    """Remove them. Keys with an expiry or a prefix are revoked: otherwise they would have more rights than given."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0014_limits_down.sql")

"""Keys that end, that are bound, and that tell when they were used; what tenants spend on providers."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add them. Code that knows nothing of it goes on working, and takes a key that ends or is bound for one that does
    and is not: make none before all processes are of this version."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0014_limits.sql")


def downgrade() -> None:
    """Remove them. Keys that end or are bound are revoked: without that they would reach further than they may."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0014_limits_down.sql")

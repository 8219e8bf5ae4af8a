"""Tenant isolation: row-level security under a role that owns nothing."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the policies and the role. Code that acts as the tables' owner keeps working, without isolation."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0013_walls.sql")


def downgrade() -> None:
    """Remove the policies, but not the role, which other databases may use."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0013_walls_down.sql")

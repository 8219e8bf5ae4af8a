"""What calls came to, what providers counted, and evictions kept with the epoch that decided on them."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add them; code that knows nothing of them goes on working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0003_audit.sql")


def downgrade() -> None:
    """Remove them. What providers reported is gone."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0003_audit_down.sql")

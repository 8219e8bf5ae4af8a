"""What was announced and became an event goes with it when that is redacted."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Let it; code that knows nothing of it goes on working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0015_announced.sql")


def downgrade() -> None:
    """Refuse that again."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0015_announced_down.sql")

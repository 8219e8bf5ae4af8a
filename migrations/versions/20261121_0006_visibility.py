"""What agents decide to hide, show and pin."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add them; code that knows nothing of them goes on working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0006_visibility.sql")


def downgrade() -> None:
    """Remove them. Everything that was hidden is shown again."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0006_visibility_down.sql")

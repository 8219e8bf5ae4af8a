"""Agents' decisions to hide, show and pin events."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the table and columns; code of the earlier version keeps working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0006_visibility.sql")


def downgrade() -> None:
    """Remove them. Hidden events are shown again."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0006_visibility_down.sql")

"""The lines of a session, of which one is current, and the hash chains by which they are found."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the columns and the table: every session is its own first line. In code of the earlier version a name means
    its first line, and further lines are forks."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0019_lines.sql")


def downgrade() -> None:
    """Remove them: further lines become ordinary sessions."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0019_lines_down.sql")

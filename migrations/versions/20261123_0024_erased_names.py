"""The names of erased sessions."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the table, empty: earlier erasures have left no names."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0024_erased_names.sql")


def downgrade() -> None:
    """Remove the table: in the earlier version an erased name can be used again by anyone."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0024_erased_names_down.sql")

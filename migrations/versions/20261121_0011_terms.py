"""A search index tells which version of the terms it was made by."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add it; code that knows nothing of it goes on working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0011_terms.sql")


def downgrade() -> None:
    """Remove it, and the indexes of a later version. They are made anew of the log."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0011_terms_down.sql")

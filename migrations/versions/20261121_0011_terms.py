"""Each search index records the version of its terms."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the column; code of the earlier version keeps working."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0011_terms.sql")


def downgrade() -> None:
    """Remove the column, and the indexes of later versions, which are rebuilt from the log."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0011_terms_down.sql")

"""Functions for a database whose sessions are in shards."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Replace functions. On a database that is not distributed they do the same as before."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0022_shards.sql")


def downgrade() -> None:
    """Restore the earlier functions, which do not work on a distributed database."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0022_shards_down.sql")

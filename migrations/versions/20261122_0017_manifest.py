"""Columns for the values of a call's manifest that statements read; the manifest itself stays as it is."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the columns, empty. Records without values, old ones and those of earlier code, are read by the manifest."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0017_manifest.sql")


def downgrade() -> None:
    """Remove the columns: the manifests have all their values."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0017_manifest_down.sql")

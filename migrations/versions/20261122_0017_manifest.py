"""What statements read of a call's manifest stands in columns; the manifest itself stays as it is."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add them, empty. Code that knows nothing of them goes on working, and what it records is read as older records
    are: by their manifests."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0017_manifest.sql")


def downgrade() -> None:
    """Remove them: the manifests hold all of it."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0017_manifest_down.sql")

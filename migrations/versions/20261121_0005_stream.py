"""What happens to a session beside its log, for those who read along, and webhooks with their deliveries."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add them; triggers write them, so code that knows nothing of them leaves nothing out."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0005_stream.sql")


def downgrade() -> None:
    """Remove them. What has not been delivered will not be."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0005_stream_down.sql")

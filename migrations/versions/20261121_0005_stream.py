"""Changes of a session other than events, for streams, and webhooks with their deliveries."""

from pathlib import Path

from alembic import op

from migrations.script import run_script

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Add the tables. Triggers write them, so changes made by code of the earlier version are recorded too."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0005_stream.sql")


def downgrade() -> None:
    """Remove the tables. Pending deliveries are lost."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    run_script(op.get_bind(), _SQL / "0005_stream_down.sql")

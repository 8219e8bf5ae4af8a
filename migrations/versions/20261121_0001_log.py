"""The log, views and epochs, the record of calls, tenants and keys, and the job queue's own tables."""

from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import sqlalchemy as sa
from alembic import op

from migrations.script import run_script

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"
_TABLES = (
    "model_calls",
    "epochs",
    "views",
    "appends",
    "events",
    "sessions",
    "policies",
    "api_keys",
    "tenants",
)


def upgrade() -> None:
    """Create all tables, and the tenant that a server without keys serves."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    connection = op.get_bind()
    run_script(connection, _SQL / "0001_log.sql")
    run_script(connection, _SQL / "pgqueuer.sql")
    connection.execute(
        sa.text("INSERT INTO tenants (tenant_id, name) VALUES (:id, 'default')"),
        {"id": uuid5(NAMESPACE_URL, "palimpsest:default")},
    )


def downgrade() -> None:
    """Remove all tables."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in _TABLES:
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP FUNCTION palimpsest_immutable()")
    run_script(op.get_bind(), _SQL / "pgqueuer_down.sql")

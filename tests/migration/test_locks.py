"""Migrations lock and remove nothing that servers of the previous release need; squawk checks their statements."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SQL = Path(__file__).parents[2] / "migrations" / "sql"
FIRST = "0016"
"""Earlier migrations precede the first release."""
EXCLUDED = {
    "prefer-robust-stmts": "a migration is one transaction: there is nothing half done to be repeated",
    "require-lock-timeout": "migrations/script.py.mako sets one for each migration, and a test looks for it",
    "require-statement-timeout": "a lock is waited for at most 5 seconds; what was read so far is not thrown away",
    "require-timeout-settings": "as the two above",
    "prefer-bigint-over-int": "counts of what is in one request",
    "prefer-bigint-over-smallint": "as above",
    "prefer-text-field": "a question of style",
}
ALLOWED = {
    ("0021_retention.sql", "require-concurrent-index-creation"): (
        "`compactions` and `changes` have a few rows a session, and are written seldom (docs/operations/upgrades.md)"
    ),
    ("0019_lines.sql", "require-concurrent-index-creation"): (
        "partial, of further lines, of which there are none: it reads `sessions` once, one row a session "
        "(docs/operations/upgrades.md has figures)"
    ),
}
"""Violations of a rule that are accepted, with the reason."""


def faults(*paths: Path) -> set[tuple[str, str]]:
    """Return the file and the rule of each statement that would break a running release."""
    squawk = Path(sys.executable).parent / "squawk"
    options = ("--reporter", "json", "--pg-version", "15.0", "--assume-in-transaction", "--exclude", ",".join(EXCLUDED))
    found = subprocess.run((squawk, *options, *paths), capture_output=True, text=True, check=False)
    assert not found.stderr or found.returncode in (0, 1), found.stderr
    return {(Path(one["file"]).name, one["rule_name"]) for one in json.loads(found.stdout)}


def migrations() -> list[Path]:
    return sorted(path for path in SQL.glob("[0-9]*.sql") if not path.stem.endswith("_down") and path.stem >= FIRST)


def test_no_migration_locks_a_table_for_long_or_removes_what_is_in_use() -> None:
    assert len(migrations()) >= 4
    assert faults(*migrations()) == set(ALLOWED)


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("ALTER TABLE events ADD COLUMN more TEXT NOT NULL;", "adding-required-field"),
        ("ALTER TABLE events ADD COLUMN more UUID DEFAULT gen_random_uuid();", "adding-field-with-default"),
        ("ALTER TABLE events ALTER COLUMN tokens TYPE BIGINT;", "changing-column-type"),
        ("ALTER TABLE events DROP COLUMN tokens;", "ban-drop-column"),
        ("ALTER TABLE events RENAME COLUMN tokens TO size;", "renaming-column"),
        ("DROP TABLE layers;", "ban-drop-table"),
        ("CREATE INDEX events_more_idx ON events (tokens);", "require-concurrent-index-creation"),
        ("ALTER TABLE events ALTER COLUMN tokens SET NOT NULL;", "adding-not-nullable-field"),
        ("ALTER TABLE events ADD CONSTRAINT small CHECK (tokens < 9);", "constraint-missing-not-valid"),
    ],
)
def test_forbidden_statements_are_found(tmp_path: Path, statement: str, rule: str) -> None:
    path = tmp_path / "9999_more.sql"
    path.write_text(statement)
    assert (path.name, rule) in faults(path)


def test_each_migration_waits_for_a_lock_no_longer_than_5_seconds() -> None:
    for path in (SQL.parent / "versions").glob("*.py"):
        assert path.read_text().count("SET LOCAL lock_timeout = '5s'") == 2, path.name

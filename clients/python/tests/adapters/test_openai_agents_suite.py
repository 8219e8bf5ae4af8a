"""The SDK's own tests of sessions and runners, with ours in place of its `SQLiteSession`."""

from __future__ import annotations

from tests.adapters.upstream_suite import failures, sources

SUITE = [
    "tests/memory/test_session.py",
    "tests/memory/test_session_limit.py",
    "tests/memory/test_compaction_model_visibility.py",
    "tests/memory/test_openai_responses_compaction_session.py",
    "tests/test_agent_runner.py",
    "tests/test_agent_runner_streamed.py",
    "tests/test_max_turns.py",
    "tests/test_native_tool_failure_history.py",
    "tests/test_programmatic_tool_calling.py",
    "tests/test_run_impl_resume_paths.py",
    "tests/test_soft_cancel.py",
    "tests/test_tool_batch_failure_history.py",
    "tests/test_tool_failure_boundaries.py",
]
OF_SQLITE = {
    "close_closes_worker_thread_connections": "its connections",
    "reaps_connections_from_exited_worker_threads": "its connections",
    "closes_retired_connections_before_the_next_allocation": "its connections",
    "keeps_connections_of_live_worker_threads": "its connections",
    "closed_rejects_empty_add_items": "its state after `close`",
    "pop_item_skips_corrupt_most_recent": "rows that are no JSON",
    "pop_item_returns_none_after_dropping_only_corrupt_rows": "rows that are no JSON",
    "get_items_limit_skips_corrupt_newest_rows": "rows that are no JSON",
    "get_items_session_settings_limit_skips_corrupt_rows": "rows that are no JSON",
    "file_lock_is_shared_across_instances": "the lock of its file",
    "failed_add_items_releases_write_lock": "the lock of its file",
    "failed_clear_session_rolls_back": "its transactions",
    "failed_pop_item_releases_write_lock": "the lock of its file",
    "rollback_failure_evicts_connection": "its transactions",
    "close_retries_quarantined_connection": "its connections",
    "post_commit_cancellation_propagates_after_known_outcome[add]": "its transactions",
    "post_commit_cancellation_propagates_after_known_outcome[pop]": "its transactions",
    "post_commit_cancellation_propagates_after_known_outcome[clear]": "its transactions",
}
"""Tests of `SQLiteSession` itself by their subject: they open its files and call its private methods."""


def test_our_session_passes_them(server: str) -> None:
    failed, passed = failures(sources("openai-agents"), SUITE, ["-p", "upstream_session"], server)
    prefix = "tests/memory/test_session.py::test_sqlite_session_"
    assert failed == {prefix + name for name in OF_SQLITE}
    assert passed > 1_200

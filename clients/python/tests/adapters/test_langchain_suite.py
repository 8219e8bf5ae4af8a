"""LangChain's own tests of middleware, with ours added to every agent that they make."""

from __future__ import annotations

from tests.adapters.upstream_suite import failures, sources

SUITE = ["tests/unit_tests/agents/middleware/core"]
OPTIONS = ["-p", "upstream_middleware", "--noconftest", "-o", "asyncio_mode=auto"]
"""Options without their `conftest.py` files, which need packages and databases for other tests."""


def test_our_middleware_fails_none_that_passes_without_it(server: str) -> None:
    suite = sources("langchain")
    without, passed = failures(suite, SUITE, OPTIONS, None)
    assert passed > 230
    with_ours, _ = failures(suite, SUITE, OPTIONS, server)
    assert with_ours == without

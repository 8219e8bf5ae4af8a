"""Presets: the read-only policies that come with the server, by name."""

from collections.abc import Mapping
from typing import Final

from app.core.policy.policy import Policy, parse_policy

DOCUMENTS: Final[Mapping[str, Mapping[str, object]]] = {
    "default": {},
    # For agents that run unattended and can recall: large results are shown once.
    "unattended": {"economics": {"once_tokens": 500}},
    # S0 and S1: a timeline, compacted at nine tenths of the window, pruned when the cache has gone cold.
    "timeline": {
        "trigger": {"ratio": 0.9},
        "reserve_tokens": 0,
        "estimator": "tiktoken:cl100k_base",
        "evict": "on_pressure",
        "retention": {"keep_last": None, "identifiers": 0, "arguments": False, "superseded": False, "working_set": 0},
        "ttl_pruning": {"ttl_seconds": 300},
        "cut": {"keep_ratio": 0.7, "keep_recent_turns": 6, "lean": "forward", "split_turn": "prefix"},
        "summarize": {
            "view": "latest",
            "style": "planned",
            "max_tokens": 800,
            "prefix_max_tokens": 400,
            "on_fail": "unchanged",
        },
        "overflow": {"patterns": ["timeline"]},
        "visibility": {"hide": "tail", "hide_tail_tokens_max": 2_000},
        "markers": "rounds",
    },
    # S2: free reducers at every assembly, then the window; OpenAI's models are counted by their tokenizer.
    "pipeline": {
        "heuristic": "bytes4+1",
        "evict": "every_assembly",
        "retention": {
            "keep_last": None,
            "age_turns": 6,
            "min_tokens": 0,
            "identifiers": 0,
            "dense": 1,
            "arguments": False,
            "superseded": False,
            "working_set": 0,
        },
        "dialogue_window": {"turns": 40},
        "cut": {"keep_turns": 2, "split_turn": "advance"},
        "summarize": {"view": "latest", "role": "system", "on_fail": "unchanged"},
        "markers": "prefix",
    },
    # S3: batches of the oldest messages at eight tenths of the window.
    "clip": {
        "trigger": {"ratio": 0.8},
        "reserve_tokens": 0,
        "estimator": "ceil4",
        "evict": "on_pressure",
        "retention": {"keep_last": None, "identifiers": 0, "arguments": False, "superseded": False, "working_set": 0},
        "cut": {"keep_messages": 5, "split_turn": "prefix"},
        "summarize": {
            "view": "clip",
            "scope": "oldest",
            "chunk_events": 20,
            "max_tokens": 1024,
            "style": "narrative",
            "role": "system",
            "on_fail": "unchanged",
        },
    },
    # S4: a reserve, and a kept part sized by the window.
    "threshold": {
        "trigger": {"reserve": "auto"},
        "reserve_tokens": 0,
        "estimator": "chars4min1",
        "evict": "on_pressure",
        "retention": {"keep_last": None, "identifiers": 0, "arguments": False, "superseded": False, "working_set": 0},
        "cut": {"keep_tokens": "auto", "split_turn": "prefix"},
        "summarize": {"view": "latest", "max_tokens": 13_107, "on_fail": "unchanged"},
        "overflow": {"patterns": ["threshold"]},
    },
}

PRESETS: Final[Mapping[str, Policy]] = {name: parse_policy(document) for name, document in DOCUMENTS.items()}

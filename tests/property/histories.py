"""Deterministic agent histories from a seed, dense with everything that changes an epoch."""

from collections.abc import Callable
from random import Random
from typing import Any

Json = dict[str, Any]

SAID = "the build of parser.py fails at line 42 since config/base.toml names no target; see lib/io.c and run make all"
WORDS = list(SAID.split(" "))
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
DATA = "A" * 6_000
TOOLS = ("read", "grep", "shell/run it", "ask")


def text(random: Random, least: int = 3, most: int = 60) -> str:
    """Return some words, not all of them in Latin script."""
    words = random.choices([*WORDS, "größer", "猫", "{}"], k=random.randint(least, most))
    return " ".join([*words, f"n{random.randint(0, 99_999)}"])


def agent_turns(random: Random, turns: int) -> list[list[Json]]:
    """Return batches of neutral events: prompts, rounds with parallel calls, results of any size, late or missing."""
    batches: list[list[Json]] = []
    late: list[Json] = []
    if random.random() < 0.8:
        batches.append([{"type": "system.prompt", "content": text(random)}, tools(random)])
    for turn in range(turns):
        user: Json = {"type": "user.message", "content": text(random)} | extras(random)
        if random.random() < 0.2:
            user["content"] = [
                {"type": "text", "text": text(random)},
                {"type": "image", "data": PNG, "mime": "image/png"},
            ]
        batches.append([user])
        for _ in range(random.randint(0, 4)):
            batches += _round(random, f"{turn}.{len(batches)}", late)
        if late and random.random() < 0.4:
            batches.append([late.pop(random.randrange(len(late)))])
        batches.append([{"type": "assistant.message", "content": _content(random)} | extras(random)])
        if random.random() < 0.15:
            kind = random.choice(["system.prompt", "tools", "system.message", "agent.note", "turn.end", "announce"])
            batches.append([tools(random) if kind == "tools" else _other(random, kind)])
    return batches


def _round(random: Random, name: str, late: list[Json]) -> list[list[Json]]:
    calls, results = [], []
    author = {"author": random.choice(["lead", "scout"])} if random.random() < 0.15 else {}
    for number in range(random.choice([1, 1, 2, 3])):
        path = f"src/f{random.randint(0, 5)}.py"
        arguments: Json = {"path": path}
        if random.random() < 0.3:
            arguments["content"] = text(random, 80, 300)
        given = {"call_id": f"c{name}.{number}", "tool": random.choice(TOOLS), "arguments": arguments}
        calls.append({"type": "tool.call"} | given | author)
        content: Any = text(random, 2, random.choice([20, 150, 700]))
        if random.random() < 0.1:
            content = [{"type": "text", "text": content}, {"type": "image", "data": DATA, "mime": "image/png"}]
        result = {"type": "tool.result", "call_id": given["call_id"], "content": content} | extras(random)
        if random.random() < 0.1:
            result["is_error"] = True
        (late if random.random() < 0.12 else results).append(result)
    random.shuffle(results)
    said = [{"type": "assistant.message", "content": _content(random)} | author] if random.random() < 0.5 else []
    return [[*said, *calls], results] if results else [[*said, *calls]]


def _content(random: Random) -> Any:
    if random.random() < 0.3:
        thought = {"type": "thinking", "thinking": text(random), "signature": "s"}
        return [thought, {"type": "text", "text": text(random)}]
    return text(random)


def _other(random: Random, kind: str) -> Json:
    return {"type": kind} if kind == "turn.end" else {"type": kind, "content": text(random)} | extras(random)


def tools(random: Random) -> Json:
    """Return an event with a tool list."""
    names = random.sample(TOOLS, 2)
    return {"type": "tools", "content": [{"name": n, "description": text(random), "parameters": {}} for n in names]}


def extras(random: Random) -> Json:
    """Return fields that make an event expire, stay, or have an author."""
    found: Json = {}
    if random.random() < 0.12:
        found |= random.choice(
            [
                {"ttl_turns": 1},
                {"ttl_turns": 2, "replacement": "[gone]"},
                {"ttl_seconds": 1_500},
                {"supersedes": "k"},
                {"supersedes": "k", "replacement": "[older]"},
            ]
        )
    if random.random() < 0.04:
        found["pinned"] = True
    if random.random() < 0.1:
        found["author"] = random.choice(["lead", "scout"])
    return found


def openai_turns(random: Random, turns: int) -> list[list[Json]]:
    """Return chat completions, including tool messages with names."""

    def a_round(name: str) -> list[list[Json]]:
        ids = [f"call_{name}_{n}" for n in range(random.choice([1, 1, 2]))]
        arguments = '{"path": "a.py"}'
        calls = [{"id": i, "type": "function", "function": {"name": "read", "arguments": arguments}} for i in ids]
        said = {"role": "assistant", "content": random.choice([None, text(random)]), "tool_calls": calls}
        return [
            [said],
            [{"role": "tool", "tool_call_id": i, "name": "read", "content": text(random, 20, 500)} for i in ids],
        ]

    def plain(role: str) -> Json:
        return {"role": role, "content": text(random), **random.choice([{}, {"name": "ann"}])}

    return _native(random, turns, plain, a_round)


def anthropic_turns(random: Random, turns: int) -> list[list[Json]]:
    """Return Anthropic messages with signed thinking."""

    def a_round(name: str) -> list[list[Json]]:
        ids = [f"toolu_{name}_{n}" for n in range(random.choice([1, 1, 2]))]
        uses = [{"type": "tool_use", "id": i, "name": "read", "input": {"path": "a.py"}} for i in ids]
        thought = [{"type": "thinking", "thinking": text(random), "signature": "s"}] if random.random() < 0.4 else []
        results = [{"type": "tool_result", "tool_use_id": i, "content": text(random, 20, 500), "x_own": 1} for i in ids]
        return [[{"role": "assistant", "content": [*thought, *uses]}], [{"role": "user", "content": results}]]

    return _native(random, turns, lambda role: {"role": role, "content": text(random)}, a_round)


def responses_turns(random: Random, turns: int) -> list[list[Json]]:
    """Return items of the Responses API, of several kinds."""

    def a_round(name: str) -> list[list[Json]]:
        id, output = f"call_{name}", text(random, 20, 500)
        if random.random() < 0.3:
            call = {"type": "custom_tool_call", "call_id": id, "name": "patch", "input": text(random)}
            return [[call], [{"type": "custom_tool_call_output", "call_id": id, "output": output}]]
        reasoning = {"type": "reasoning", "id": f"rs_{name}", "summary": [], "encrypted_content": "x"}
        call = {"type": "function_call", "call_id": id, "name": "read", "arguments": "{}", "id": f"fc_{name}"}
        return [[reasoning, call], [{"type": "function_call_output", "call_id": id, "output": output}]]

    return _native(random, turns, lambda role: {"role": role, "content": text(random)}, a_round)


def _native(
    random: Random, turns: int, plain: Callable[[str], Json], a_round: Callable[[str], list[list[Json]]]
) -> list[list[Json]]:
    batches = [[{"role": "system", "content": text(random)}]]
    for turn in range(turns):
        batches.append([plain("user")])
        for number in range(random.randint(0, 4)):
            batches += a_round(f"{turn}_{number}")
        batches.append([plain("assistant")])
    return batches


HISTORIES = {
    "events": agent_turns,
    "openai": openai_turns,
    "anthropic": anthropic_turns,
    "openai-responses": responses_turns,
}


def policy(random: Random) -> Json:
    """Return a policy with knobs of every reducer, and summaries of short spans."""
    document: Json = {
        "reserve_tokens": 0,
        "injection_reserve_tokens": 400,
        "evict": random.choice(["economic", "on_pressure", "on_cache_expiry", "every_assembly"]),
        "low_water": random.choice([0.3, 0.7, 1.0]),
        "retention": {
            "keep_last": random.choice([None, 0, 2, 5]),
            "age_turns": random.choice([None, 1, 3]),
            "min_tokens": random.choice([0, 50]),
            "identifiers": random.choice([0.0, 0.2]),
        },
        "economics": {
            "factor": random.choice([0.0, 1.0]),
            "least_tokens": random.choice([0, 200]),
            "once_tokens": random.choice([None, 50]),
        },
        "summarize": {
            "chunk_tokens": random.choice([150, 400]),
            "max_tokens": 200,
            "max_ratio": 0.5,
            "keep_ratio": 0.1,
            "view": random.choice(["all", "all", "clip", "latest"]),
            "scope": random.choice(["level", "oldest"]),
            "clip_first": random.choice([0, 1]),
            "clip_last": 1,
            "buffer": random.choice([0, 2]),
            "role": random.choice(["user", "system"]),
        },
        "markers": random.choice(["tail", "rounds", "prefix"]),
        "authors": random.choice([None, None, None, ["lead"], []]),
        "estimator": random.choice([None, None, "ceil4", "heuristic"]),
    }
    if random.random() < 0.4:
        document["ttl_pruning"] = {"ttl_seconds": 600, "keep_recent_turns": 1, "keep_recent_intact_turns": 0}
    if random.random() < 0.3:
        document["dialogue_window"] = {"turns": random.choice([2, 4])}
    if random.random() < 0.3:
        document["caps"] = {"tool_results": 0.3, "dialogue": 0.4, "summaries": 0.1}
    if random.random() < 0.3:
        document["cut"] = {"keep_tokens": 300, "split_turn": random.choice(["prefix", "protect_current", "advance"])}
    return document
